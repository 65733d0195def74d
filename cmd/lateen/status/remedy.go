package status

import (
	"cmp"
	"fmt"
	"strings"
)

// Remedies that apply to several situations.
const (
	remedyRoom = "Free resources on the nodes, reduce podResources or change loadAffinity in the node-agent ConfigMap, " +
		"or set priorityClassName there, so that movers can preempt other pods. Agents read the ConfigMap at their start."
	remedyImage  = "Check that nodes can pull the image of movers: that of Deployment velero, or --mover-image of the agents. Movers use the pull secrets of DaemonSet node-agent."
	remedyMemory = "Raise memoryLimit in podResources of the node-agent ConfigMap, then restart the agents."
	remedyRetry  = "Finished transfers are not retried. Run the backup or restore again."
)

// remedyOfWait returns what the user can do about a wait.
func (j *evaluator) remedyOfWait(of *subject, wait Wait) string {
	source := of.move.Source
	switch wait.Reason {
	case WaitAgent:
		return j.remedyOfAgent(of)
	case WaitCoordinator:
		return j.kubectl("logs -l role=node-agent --prefix --tail=20") + " shows why no agent acquires the Lease."
	case WaitQueue:
		return "It is accepted when a prepared transfer starts. loadConcurrency in the node-agent ConfigMap limits running transfers (globalConfig, perNodeConfig) and prepared ones (prepareQueueLength)."
	case WaitSlot:
		return fmt.Sprintf("It starts when another transfer on %s ends, the oldest first. A higher limit in loadConcurrency of the node-agent ConfigMap allows more.", of.state.Node)
	case WaitPod:
		pod := source.PodVolume.Pod
		return fmt.Sprintf("kubectl -n %s describe pod %s shows why the restored pod has not started init container restore-wait.", pod.Namespace, pod.Name)
	case WaitConsumer:
		return "Start a pod that uses the claim, or set restorePVC.ignoreDelayBinding in the node-agent ConfigMap."
	case WaitRefused:
		return "Raise the quota of namespace " + of.meta.GetNamespace() + ", or remove the cause of the rejection. The agent retries."
	case WaitSnapshot:
		return fmt.Sprintf("kubectl -n %s describe volumesnapshot %s and the log of the CSI driver's snapshotter have details.", source.Snapshot.Namespace, source.Snapshot.Snapshot)
	case WaitVolume:
		names := []string{"pod/" + of.meta.GetName()}
		for _, claim := range j.claimsOf(of) {
			names = append(names, "pvc/"+claim.Name)
		}
		return j.kubectl("describe "+strings.Join(names, " ")) + " has details."
	case WaitScheduler:
		return remedyRoom
	case WaitContainer:
		return j.remedyOfContainer(of, wait)
	case WaitMover:
		return j.remedyOfAgent(of)
	case WaitDelivery:
		return fmt.Sprintf("kubectl -n %s describe pvc %s shows why the claim is not bound.", source.Target.Namespace, source.Target.Claim)
	case WaitCleanUp:
		return j.remedyOfCleanUp(of)
	case WaitCancel:
		return fmt.Sprintf("None needed: a mover that does not respond is deleted %s after the cancel (--cancel-grace).", shortDuration(j.options().CancelGrace))
	}
	return ""
}

// remedyOfCleanUp returns what the user can do if a kubelet does not end a mover, or a CSI driver does not delete a
// snapshot.
func (j *evaluator) remedyOfCleanUp(of *subject) string {
	if mover := j.endingMover(of); mover != nil {
		return fmt.Sprintf("%s and the log of the kubelet of %s have details.", j.kubectl("describe pod "+mover.Name), mover.Spec.NodeName)
	}
	h := j.handover(of)
	if h == nil || h.Backup.Content == nil {
		return j.remedyOfAgent(of)
	}
	return fmt.Sprintf("kubectl describe volumesnapshotcontent %s and the log of the CSI driver's snapshotter have details.", h.Name)
}

func (j *evaluator) remedyOfContainer(of *subject, wait Wait) string {
	if strings.Contains(wait.Message, "Image") {
		return remedyImage
	}
	return j.kubectl("describe pod "+of.meta.GetName()) + " has details."
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
		return "If this continues, see the log of its agent."
	case pod == "":
		return fmt.Sprintf("DaemonSet node-agent has no pod on %s: check its node selector and tolerations, and the node.", node)
	case j.agents[node].Agent != AgentReady:
		return j.kubectl("describe pod "+pod) + " shows why the agent is not Ready."
	}
	return "If this continues, see " + j.kubectl("logs "+pod) + "."
}

// remedyOfFailure returns what the user can do to avoid the same failure. It matches text in the messages of agents,
// and in the messages that agents pass on.
func (j *evaluator) remedyOfFailure(of *subject) string {
	for _, known := range []struct{ text, remedy string }{
		{"is not supported by Lateen", "Velero's agents support it: restore them with lateen adopt --undo for this transfer."},
		{"OOMKilled", remedyMemory},
		{"ErrImage", remedyImage},
		{"ImagePull", remedyImage},
		{"InvalidImageName", remedyImage},
		{"given up after", "Its movers were lost repeatedly. priorityClassName in the node-agent ConfigMap protects movers from preemption, podResources from eviction; a higher --mover-retries allows more restarts."},
		{"no mover may overwrite it", "Check the data of the named volume: if it is complete, nothing is left to do; if not, delete the pod first."},
		{"exceeded quota", "Raise the quota of namespace " + of.meta.GetNamespace() + ", or reduce podResources."},
		{"Unschedulable", remedyRoom},
		{"no ready node-agent", "Check that DaemonSet node-agent has a Ready pod on that node."},
		{"has no consumer", "Start a pod that uses the claim, or set restorePVC.ignoreDelayBinding in the node-agent ConfigMap."},
		{"VolumeSnapshot", "See the log of the CSI driver's snapshotter for the snapshot."},
		{"is kept", "The restored data is kept: bind the named PersistentVolume to a claim, or delete it."},
		{"does not exist any more", "The pod was deleted before or during the transfer, so its volume cannot be accessed any more."},
	} {
		if strings.Contains(of.state.Message, known.text) {
			return known.remedy + " " + remedyRetry
		}
	}
	return remedyRetry
}
