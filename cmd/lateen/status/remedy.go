package status

import (
	"cmp"
	"fmt"
	"strings"
)

// Remedies that apply to several situations.
const (
	remedyRoom = "Make room for it, let movers ask for less (podResources) or go elsewhere (loadAffinity) in the node-agent ConfigMap, " +
		"or give them a priority class (priorityClassName), so that they may take the place of others. Agents read the ConfigMap when they start."
	remedyImage  = "See that nodes can pull the image of movers: it is that of Deployment velero unless agents have --mover-image, and pull secrets are those of DaemonSet node-agent."
	remedyMemory = "Give movers more memory: memoryLimit in podResources of the node-agent ConfigMap; then restart the agents."
	remedyRetry  = "A transfer that is over never goes on: make the backup or the restore again."
)

// remedyOfWait returns what the user can do about a wait.
func (j *evaluator) remedyOfWait(of *subject, wait Wait) string {
	source := of.move.Source
	switch wait.Reason {
	case WaitAgent:
		return j.remedyOfAgent(of)
	case WaitCoordinator:
		return j.kubectl("logs -l role=node-agent --prefix --tail=20") + " says why no agent takes the Lease."
	case WaitQueue:
		return "It is accepted as soon as one of those that are prepared moves. loadConcurrency in the node-agent ConfigMap lets more move at once (globalConfig, perNodeConfig), or be prepared (prepareQueueLength)."
	case WaitSlot:
		return fmt.Sprintf("It starts when another one ends on %s, the oldest first. loadConcurrency in the node-agent ConfigMap lets more move at once.", of.state.Node)
	case WaitPod:
		pod := source.PodVolume.Pod
		return fmt.Sprintf("kubectl -n %s describe pod %s says what keeps the restored pod from its init container restore-wait.", pod.Namespace, pod.Name)
	case WaitConsumer:
		return "Start a pod that uses the claim, or have agents not wait for one: restorePVC.ignoreDelayBinding in the node-agent ConfigMap."
	case WaitRefused:
		return "Let it be made: raise the quota of namespace " + of.meta.GetNamespace() + ", or change what else refuses it. The agent tries again by itself."
	case WaitSnapshot:
		return fmt.Sprintf("kubectl -n %s describe volumesnapshot %s, and the log of the CSI driver's snapshotter, say more.", source.Snapshot.Namespace, source.Snapshot.Snapshot)
	case WaitVolume:
		names := []string{"pod/" + of.meta.GetName()}
		for _, claim := range j.claimsOf(of) {
			names = append(names, "pvc/"+claim.Name)
		}
		return j.kubectl("describe "+strings.Join(names, " ")) + " says more."
	case WaitScheduler:
		return remedyRoom
	case WaitContainer:
		return j.remedyOfContainer(of, wait)
	case WaitMover:
		return j.remedyOfAgent(of)
	case WaitDelivery:
		return fmt.Sprintf("kubectl -n %s describe pvc %s says what keeps the claim from its volume.", source.Target.Namespace, source.Target.Claim)
	case WaitCleanUp:
		return j.remedyOfCleanUp(of)
	case WaitCancel:
		return fmt.Sprintf("Nothing: a mover that does not answer is deleted %s after the cancel (--cancel-grace).", shortDuration(j.options().CancelGrace))
	}
	return ""
}

// remedyOfCleanUp returns what the user can do if a kubelet does not end a mover, or a CSI driver does not delete a
// snapshot.
func (j *evaluator) remedyOfCleanUp(of *subject) string {
	if mover := j.endingMover(of); mover != nil {
		return fmt.Sprintf("%s, and the log of the kubelet of %s, say more.", j.kubectl("describe pod "+mover.Name), mover.Spec.NodeName)
	}
	h := j.handover(of)
	if h == nil || h.Backup.Content == nil {
		return j.remedyOfAgent(of)
	}
	return fmt.Sprintf("kubectl describe volumesnapshotcontent %s, and the log of the CSI driver's snapshotter, say more.", h.Name)
}

func (j *evaluator) remedyOfContainer(of *subject, wait Wait) string {
	if strings.Contains(wait.Message, "Image") {
		return remedyImage
	}
	return j.kubectl("describe pod "+of.meta.GetName()) + " says more."
}

// remedyOfAgent names the log or the object that shows why the next step is missing.
func (j *evaluator) remedyOfAgent(of *subject) string {
	node := cmp.Or(of.state.Node, j.coordinator().Node)
	if source := of.move.Source.PodVolume; of.state.Node == "" && source != nil {
		node = ""
		if pod := j.pods[source.Pod.Namespace+"/"+source.Pod.Name]; pod != nil {
			node = pod.Spec.NodeName
		}
	}
	pod := j.agentPod(node)
	switch {
	case pod == "" && node == "":
		return "If this lasts, the log of its agent says why."
	case pod == "":
		return fmt.Sprintf("DaemonSet node-agent has no pod on %s: look at its node selector and tolerations, and at the node.", node)
	case j.agents[node].Agent != AgentReady:
		return j.kubectl("describe pod "+pod) + " says what is wrong with the agent."
	}
	return "If this lasts, " + j.kubectl("logs "+pod) + " says why."
}

// remedyOfFailure returns what the user can do to avoid the same failure. It matches text in the messages of agents,
// and in the messages that agents pass on.
func (j *evaluator) remedyOfFailure(of *subject) string {
	for _, known := range []struct{ text, remedy string }{
		{"is not supported by Lateen", "Velero's own agents can do it: put them back with lateen adopt --undo for as long as it takes."},
		{"OOMKilled", remedyMemory},
		{"ErrImage", remedyImage},
		{"ImagePull", remedyImage},
		{"InvalidImageName", remedyImage},
		{"given up after", "Its movers were taken away again and again. A priority class (priorityClassName in the node-agent ConfigMap) protects them from preemption, and podResources from eviction; --mover-retries allows more."},
		{"no mover may overwrite it", "Look into the volume that is named: if its data is complete, nothing is left to do; if not, delete the pod first."},
		{"exceeded quota", "Raise the quota of namespace " + of.meta.GetNamespace() + ", or let movers ask for less (podResources)."},
		{"Unschedulable", remedyRoom},
		{"no ready node-agent", "See that DaemonSet node-agent runs on that node, and is ready there."},
		{"has no consumer", "Start a pod that uses the claim, or set restorePVC.ignoreDelayBinding in the node-agent ConfigMap."},
		{"VolumeSnapshot", "See in the log of the CSI driver's snapshotter what became of the snapshot."},
		{"is kept", "What was restored is not lost: bind the PersistentVolume that is named to a claim by hand, or delete it."},
		{"does not exist any more", "The pod was deleted while its volume was to be moved: that volume cannot be read or written any more."},
	} {
		if strings.Contains(of.state.Message, known.text) {
			return known.remedy + " " + remedyRetry
		}
	}
	return remedyRetry
}
