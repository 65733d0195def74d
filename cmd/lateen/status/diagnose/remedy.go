package diagnose

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Remedies that apply to several situations.
const (
	remedyRoom = "Free resources on the nodes, reduce podResources or change loadAffinity in the node-agent ConfigMap, " +
		"or set priorityClassName there, so that movers can preempt other pods."
	remedyImage  = "Check that nodes can pull the image of movers: that of Deployment velero, or --mover-image of the agents. Movers use the pull secrets of the Deployment that --mover-template of the agents names; without it, those of DaemonSet node-agent."
	remedyMemory = "Raise memoryLimit in podResources of the node-agent ConfigMap."
	remedyRetry  = "Finished transfers are not retried. Run the backup or restore again."
)

// remedyOfWait returns what the user can do about a wait.
func (e *evaluator) remedyOfWait(of *subject, wait view.Wait) string {
	source := of.spec.Source
	switch wait.Reason {
	case view.WaitAgent:
		return e.remedyOfAgent(of)
	case view.WaitCoordinator:
		return e.kubectl("logs -l role=node-agent --prefix --tail=20") + " shows why no agent acquires the Lease."
	case view.WaitQueue:
		return "It is accepted when others start or end. loadConcurrency in the node-agent ConfigMap limits running transfers (globalConfig, perNodeConfig), prepared ones (prepareQueueLength) and both (cluster, storageClasses)."
	case view.WaitSlot:
		if e.sibling(of) != nil {
			return "None needed: restores to volumes of a pod of which one was restarted run one after the other."
		}
		return fmt.Sprintf("It starts when another transfer on %s ends, the oldest first. A higher limit in loadConcurrency of the node-agent ConfigMap allows more.", of.state.Node)
	case view.WaitPod:
		pod := source.PodVolume.Pod
		return fmt.Sprintf("kubectl -n %s describe pod %s shows why the restored pod has not started init container restore-wait.", pod.Namespace, pod.Name)
	case view.WaitConsumer:
		return remedyOfConsumer(wait.Message)
	case view.WaitRefused:
		return "Raise the quota of namespace " + of.meta.GetNamespace() + ", or remove the cause of the rejection. The agent retries."
	case view.WaitSnapshot:
		return fmt.Sprintf("kubectl -n %s describe volumesnapshot %s and the log of the CSI driver's snapshotter have details.", source.Snapshot.Namespace, source.Snapshot.Snapshot)
	case view.WaitVolume:
		names := []string{"pod/" + of.meta.GetName()}
		for _, claim := range e.claimsOf(of) {
			names = append(names, "pvc/"+claim.Name)
		}
		return e.kubectl("describe "+strings.Join(names, " ")) + " has details."
	case view.WaitScheduler:
		return remedyRoom
	case view.WaitContainer:
		return e.remedyOfContainer(of)
	case view.WaitMover:
		return e.remedyOfAgent(of)
	case view.WaitRebind:
		return fmt.Sprintf("kubectl -n %s describe pvc %s shows why the claim is not bound. kubectl get volumeattachments shows whether the mover's node still has the volume.", source.Target.Namespace, source.Target.Claim)
	case view.WaitCleanUp:
		return e.remedyOfCleanUp(of)
	case view.WaitCancel:
		return fmt.Sprintf("None needed: a mover that does not respond is deleted %s after the cancel (--cancel-grace).", shortDuration(e.flags.CancelGrace))
	}
	return ""
}

// remedyOfConsumer returns what the user can do about a claim that is not ready to be restored.
func remedyOfConsumer(message string) string {
	if strings.Contains(message, "does not exist") {
		return "Create the claim or the storage class that does not exist."
	}
	return "Start a pod that uses the claim, or set restorePVC.ignoreDelayBinding in the node-agent ConfigMap."
}

// remedyOfCleanUp returns what the user can do if a kubelet does not end a mover, or a CSI driver does not delete a
// snapshot.
func (e *evaluator) remedyOfCleanUp(of *subject) string {
	if mover := e.mover(of); e.ending(of) != nil {
		return fmt.Sprintf("%s and the log of the kubelet of %s have details.", e.kubectl("describe pod "+mover.Name), mover.Spec.NodeName)
	}
	h := e.handover(of)
	if h == nil || h.Backup.Content == nil {
		return e.remedyOfAgent(of)
	}
	return fmt.Sprintf("kubectl describe volumesnapshotcontent %s and the log of the CSI driver's snapshotter have details.", h.Name)
}

// remedyOfContainer returns what the user can do about a mover whose container waits. The kubelet's reasons for a missing
// image have Image in their name (pkg/kubelet/images).
func (e *evaluator) remedyOfContainer(of *subject) string {
	if mover := e.mover(of); mover != nil {
		for _, container := range mover.Status.ContainerStatuses {
			if waiting := container.State.Waiting; waiting != nil && strings.Contains(waiting.Reason, "Image") {
				return remedyImage
			}
		}
	}
	return e.kubectl("describe pod "+of.meta.GetName()) + " has details."
}

// remedyOfAgent names the log or the object that shows why the next step is missing.
func (e *evaluator) remedyOfAgent(of *subject) string {
	holder, home := e.coordinator().Node, e.home(of)
	node := cmp.Or(of.agentNode(), holder)
	switch {
	case of.state.CoordinatorAccepts() && holder != "" && (home == "" || e.ready(home)):
		node = holder
	case of.state.Node == "" && of.spec.Source.PodVolume != nil:
		node = home
	}
	pod := e.agentPod(node)
	switch {
	case pod == "" && node == "":
		return "If this continues, see the log of its agent."
	case pod == "":
		return fmt.Sprintf("DaemonSet node-agent has no pod on %s: check its node selector and tolerations, and the node.", node)
	case e.agents[node].Agent != view.AgentReady:
		return e.kubectl("describe pod "+pod) + " shows why the agent is not Ready."
	}
	return "If this continues, see " + e.kubectl("logs "+pod) + "."
}

// remedyOfFailure returns what the user can do to avoid the same failure.
func (e *evaluator) remedyOfFailure(of *subject) string {
	return strings.TrimSpace(e.remedyOfReason(of) + " " + remedyRetry)
}

// remedyOfReason returns the remedy of the reason that the agent recorded; empty if there is none.
func (e *evaluator) remedyOfReason(of *subject) string {
	lost := "" // with restarts left, the node of a pod volume was lost: its mover is never replaced
	if of.state.Restarts >= e.flags.MoverRetries {
		lost = "priorityClassName in the node-agent ConfigMap protects movers from preemption, podResources from eviction; a higher --mover-retries allows more restarts, but none if the node of a pod volume is lost."
	}
	return map[transfer.Reason]string{
		transfer.ReasonUnsupported:    "Velero's agents support it: restore them for this transfer, with lateen adopt --undo if they were adopted.",
		transfer.ReasonMoverLost:      lost,
		transfer.ReasonMoverStalled:   "The bucket or the volume may not respond: see the log of the next mover while it runs. If movers may be silent for longer than --stall-timeout, raise it.",
		transfer.ReasonUnconfirmed:    "Check the data of the named volume: if it is complete, nothing is left to do; if not, delete the pod first.",
		transfer.ReasonRebindFailed:   "The restored data is kept: bind the named PersistentVolume to a claim of its volume mode, or delete it.",
		transfer.ReasonSourceGone:     "The pod ended or was deleted before or during the transfer, so its volume cannot be accessed any more.",
		transfer.ReasonNotEligible:    e.remedyOfIneligible(of),
		transfer.ReasonPrepareTimeout: e.remedyOfMover(of),
		transfer.ReasonCannotRun:      e.remedyOfMover(of),
		transfer.ReasonMoverFailed:    e.remedyOfMover(of),
	}[transfer.FailureOf(of.meta)]
}

func (e *evaluator) remedyOfIneligible(of *subject) string {
	source := of.spec.Source
	switch {
	case source.Target != nil:
		return remedyOfConsumer(of.state.Message)
	case source.PodVolume != nil:
		pod := e.pods[source.PodVolume.Pod.Namespace+"/"+source.PodVolume.Pod.Name]
		if pod != nil && !e.ready(pod.Spec.NodeName) {
			return "Check that DaemonSet node-agent has a Ready pod on that node."
		}
	}
	return ""
}

// remedyOfMover returns the remedy for a mover that failed or could not run. The message holds the reason code of
// Kubernetes, which is API: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/.
func (e *evaluator) remedyOfMover(of *subject) string {
	for _, known := range []struct{ code, remedy string }{
		{"OOMKilled", remedyMemory},
		{"ErrImage", remedyImage},
		{"ImagePull", remedyImage},
		{"InvalidImageName", remedyImage},
		{"exceeded quota", "Raise the quota of namespace " + of.meta.GetNamespace() + ", or reduce podResources."},
		{corev1.PodReasonUnschedulable, remedyRoom},
	} {
		if strings.Contains(of.state.Message, known.code) {
			return known.remedy
		}
	}
	if of.spec.Source.Snapshot != nil && transfer.FailureOf(of.meta) != transfer.ReasonMoverFailed {
		return "See the log of the CSI driver's snapshotter for the snapshot."
	}
	return ""
}

// shortDuration omits units that are 0: 30m instead of 30m0s.
func shortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
