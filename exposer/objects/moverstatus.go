package objects

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition is what became of an exposure.
type Condition int

// The conditions of an exposure.
const (
	Absent      Condition = iota // nothing of it exists
	Pending                      // there, and may still come to run
	Running                      // the mover runs
	Unrunnable                   // it can never run as it is
	Terminating                  // being deleted; the mover may still run
	Lost                         // the mover was taken away and has stopped; another one may do better
	Succeeded                    // the mover ended with exit code 0
	Failed                       // the mover ran and failed
)

func (c Condition) String() string {
	names := [...]string{"Absent", "Pending", "Running", "Unrunnable", "Terminating", "Lost", "Succeeded", "Failed"}
	if c < 0 || int(c) >= len(names) {
		return fmt.Sprintf("Condition(%d)", int(c))
	}
	return names[c]
}

// Why a mover was lost: the values of the label reason of lateen_mover_restarts_total.
const (
	LostVanished  = "vanished"  // its pod is gone
	LostDeleted   = "deleted"   // its pod was deleted while it ran
	LostEvicted   = "evicted"   // by the kubelet or the eviction API
	LostPreempted = "preempted" // by the scheduler, for a pod of higher priority
	LostRefused   = "refused"   // by the kubelet: the mover never ran
	LostStalled   = "stalled"   // it neither moved nor said anything for too long
	LostNode      = "node_lost" // with its node, which is not Ready or does not exist
	LostKilled    = "killed"    // by a signal, not for its memory: its node or container runtime restarted
)

// LostReasons are all reasons for which a mover can be lost.
func LostReasons() []string {
	return []string{LostVanished, LostDeleted, LostEvicted, LostPreempted, LostRefused, LostStalled, LostNode, LostKilled}
}

// Exposure is what can be read from the objects of a transfer.
type Exposure struct {
	Condition Condition
	Attempt   int    // the restart that it belongs to
	Node      string // where the mover was scheduled
	OS        string // what the mover was made for: linux or windows; empty if it does not say
	Canceled  bool   // of Failed: the mover ended because it was told to cancel
	Reason    string // why it was lost: one of LostReasons()
	Message   string // in words and stable; of Succeeded and Failed, what the mover said
}

// ReadPod reads an exposure from its mover pod; nil is a pod that does not exist.
func ReadPod(pod *corev1.Pod) Exposure {
	if pod == nil {
		return Exposure{Condition: Absent}
	}
	observed := Exposure{Attempt: attempt(pod), Node: pod.Spec.NodeName}
	if pod.Spec.OS != nil {
		observed.OS = string(pod.Spec.OS.Name)
	}
	end := terminated(pod)
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		observed.Condition, observed.Message = Succeeded, terminationMessage(pod)
	case end != nil && end.ExitCode == 0 && end.Message != "": // whatever a container that was injected does or did
		observed.Condition, observed.Message = Succeeded, end.Message
	case pod.Status.Phase == corev1.PodFailed:
		readFailed(pod, &observed)
	case pod.DeletionTimestamp != nil:
		observed.Condition, observed.Message = Terminating, "mover pod is being deleted"
	case end != nil:
		readFailed(pod, &observed)
	case pod.Status.Phase == corev1.PodRunning:
		observed.Condition = Running
	default:
		readPending(pod, &observed)
	}
	return observed
}

// Vanished is the exposure of a mover that is known to have been made and does not exist.
func Vanished(attempt int) Exposure {
	return Exposure{Condition: Lost, Attempt: attempt, Reason: LostVanished, Message: "mover pod vanished"}
}

// readFailed tells a mover that failed from one that was taken away. A pod that had already ended
// when it was deleted is gone at once, so a failed pod that is still being deleted was killed.
func readFailed(pod *corev1.Pod, observed *Exposure) {
	disruption := condition(pod, corev1.DisruptionTarget)
	observed.Condition = Lost
	switch {
	case disruption != nil && disruption.Reason == corev1.PodReasonPreemptionByScheduler:
		observed.Reason, observed.Message = LostPreempted, "mover was preempted: "+disruption.Message
	case disruption != nil:
		observed.Reason, observed.Message = LostEvicted, "mover was evicted: "+cmp.Or(pod.Status.Message, disruption.Message)
	case pod.Status.Reason == "Evicted":
		observed.Reason, observed.Message = LostEvicted, "mover was evicted: "+pod.Status.Message
	case pod.DeletionTimestamp != nil:
		observed.Reason, observed.Message = LostDeleted, "mover pod was deleted while it ran"
	case terminated(pod) != nil && lostWithNode(terminated(pod)):
		observed.Reason, observed.Message = LostVanished, "node "+pod.Spec.NodeName+" lost the mover, as in a reboot"
	case terminated(pod) == nil:
		observed.Reason, observed.Message = LostRefused, fmt.Sprintf("node %s refused the mover: %s: %s", pod.Spec.NodeName, pod.Status.Reason, pod.Status.Message)
	case killed(pod, terminated(pod)):
		observed.Reason = LostKilled
		observed.Message = fmt.Sprintf("mover was killed on node %s (exit code %d), as when the node or its container runtime restarts", pod.Spec.NodeName, terminated(pod).ExitCode)
	default:
		observed.Condition, observed.Message = Failed, failure(pod)
		observed.Canceled = strings.HasSuffix(strings.TrimSpace(terminated(pod).Message), canceledSuffix)
	}
}

// lostWithNode tells whether nobody saw the container end. The kubelet reports ContainerStatusUnknown for one that its
// runtime does not know (pkg/kubelet/kubelet_pods.go); containerd reports Unknown and 255 for one that it finds dead
// when it starts (internal/cri/server/restart.go).
func lostWithNode(end *corev1.ContainerStateTerminated) bool {
	return end.Reason == "ContainerStatusUnknown" || end.Reason == "Unknown"
}

// Exit codes of a process that was ended by a signal: 128 and its number.
const (
	exitSIGKILL = 137
	exitSIGTERM = 143
)

// killed tells whether a signal ended the mover and nothing says why. A mover that runs out of memory is OOMKilled, one
// past a deadline has the reason in its pod, and one that fails by itself exits with 1 and leaves a message.
func killed(pod *corev1.Pod, end *corev1.ContainerStateTerminated) bool {
	signaled := end.ExitCode == exitSIGKILL || end.ExitCode == exitSIGTERM
	return signaled && end.Reason != reasonOOM && pod.Status.Reason == "" && strings.TrimSpace(end.Message) == ""
}

// reasonOOM is a container whose memory limit, or whose node, had no memory left (CRI runtimes).
const reasonOOM = "OOMKilled"

// memoryLimit says what a mover that ran out of memory was allowed. Another one would need as much, so that it is not
// made by itself.
func memoryLimit(pod *corev1.Pod) string {
	mover := MoverContainer(pod)
	for _, container := range pod.Spec.Containers {
		if limit, limited := container.Resources.Limits[corev1.ResourceMemory]; limited && container.Name == mover {
			return "its memory limit is " + limit.String()
		}
	}
	return "it has no memory limit: its node had no more"
}

// canceledSuffix ends the termination message of a mover that was canceled; nothing else tells it
// from one that failed (Velero's datapath.ErrCancelled).
const canceledSuffix = "data path is canceled"

// cannotRun tells whether no waiting ends this reason of a container (kubelet's pkg/kubelet/images).
func cannotRun(waiting string) bool {
	return waiting == "InvalidImageName" || waiting == "ErrImageNeverPull"
}

func readPending(pod *corev1.Pod, observed *Exposure) {
	observed.Condition = Pending
	if scheduled := condition(pod, corev1.PodScheduled); scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		observed.Message = fmt.Sprintf("mover pod is not scheduled: %s: %s", scheduled.Reason, scheduled.Message)
	}
	for _, status := range pod.Status.ContainerStatuses {
		waiting := status.State.Waiting
		if waiting == nil {
			continue
		}
		observed.Message = strings.TrimSuffix(fmt.Sprintf("mover container is waiting: %s: %s", waiting.Reason, waiting.Message), ": ")
		if cannotRun(waiting.Reason) {
			observed.Condition = Unrunnable
		}
	}
}

// Starting tells whether a node has a mover pod and has not yet got to its image: what keeps it there is in
// the pod's events only, as when a volume cannot be attached or mounted.
func Starting(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodPending {
		return false
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Waiting == nil || status.State.Waiting.Reason != "ContainerCreating" {
			return false
		}
	}
	return true
}

// failure is what there is to say of a mover that ran and failed: its own words first, then how it
// ended, because a mover that was killed for its memory has no words.
func failure(pod *corev1.Pod) string {
	end := terminated(pod)
	how := fmt.Sprintf("exit code %d", end.ExitCode)
	if end.Reason == reasonOOM {
		how += ", out of memory (OOMKilled), " + memoryLimit(pod)
	} else if end.Reason != "" && end.Reason != "Error" {
		how += ", " + end.Reason
	}
	if why := strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message); why != "" {
		how += ", " + why
	}
	return cmp.Or(strings.TrimSpace(end.Message), "mover left no message") + " (" + how + ")"
}

// MoverContainer is the name of the container in which the mover runs, which is the UID of its custom resource
// (velero-protocol 0). Others may have been injected.
func MoverContainer(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return string(owner.UID)
	}
	return ""
}

// terminated is how the mover's container ended; nil if it has not, or never started.
func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	name := MoverContainer(pod)
	for i := range pod.Status.ContainerStatuses {
		if status := &pod.Status.ContainerStatuses[i]; status.Name == name {
			return status.State.Terminated
		}
	}
	return nil
}

func terminationMessage(pod *corev1.Pod) string {
	if end := terminated(pod); end != nil {
		return end.Message
	}
	return ""
}

// condition is the pod's condition of that type; for DisruptionTarget only when it is true.
func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		found := &pod.Status.Conditions[i]
		if found.Type == kind && (kind != corev1.DisruptionTarget || found.Status == corev1.ConditionTrue) {
			return found
		}
	}
	return nil
}
