package objects

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition is the state of an exposure.
type Condition int

// The conditions of an exposure.
const (
	Absent      Condition = iota // no object of it exists
	Pending                      // it exists and may still run
	Running                      // the mover runs
	Unrunnable                   // it can never run without a change
	Terminating                  // deleting; the mover may still run
	Lost                         // the mover was stopped from outside; a replacement may succeed
	Succeeded                    // the mover ended with exit code 0
	Failed                       // the mover ran and failed
)

func (c Condition) String() string {
	names := [...]string{"Absent", "Pending", "Running", "Unrunnable", "Terminating", "Lost", "Succeeded", "Failed"}
	return names[c]
}

// LossReason is why a mover was lost: the value of the label reason of lateen_mover_restarts_total.
type LossReason string

// The reasons of a lost mover.
const (
	LostVanished  LossReason = "vanished"  // its pod does not exist
	LostDeleted   LossReason = "deleted"   // its pod was deleted while it ran
	LostEvicted   LossReason = "evicted"   // by the kubelet or the eviction API
	LostPreempted LossReason = "preempted" // by the scheduler, for a pod of higher priority
	LostRefused   LossReason = "refused"   // by the kubelet: the mover never ran
	LostStalled   LossReason = "stalled"   // it reported neither bytes nor Events for too long
	LostNode      LossReason = "node_lost" // with its node, which is not Ready or does not exist
	LostKilled    LossReason = "killed"    // by a signal, not for its memory: its node or container runtime restarted
)

// LostReasons returns all reasons of a lost mover.
func LostReasons() []LossReason {
	return []LossReason{LostVanished, LostDeleted, LostEvicted, LostPreempted, LostRefused, LostStalled, LostNode, LostKilled}
}

// Exposure is the state of a transfer's objects.
type Exposure struct {
	Condition Condition
	Attempt   int        // the restart count of the mover
	Node      string     // node of the mover
	OS        string     // operating system of the mover: linux or windows; empty if its pod has none
	Canceled  bool       // of Failed: the mover ended because of a cancel
	Reason    LossReason // of Lost
	Message   string     // stable text for people; of Succeeded and Failed, the message of the mover
}

// ReadPod reads an exposure from its mover pod; nil is a pod that does not exist.
func ReadPod(pod *corev1.Pod) Exposure {
	if pod == nil {
		return Exposure{Condition: Absent}
	}
	observed := Exposure{Attempt: Attempt(pod), Node: pod.Spec.NodeName}
	if pod.Spec.OS != nil {
		observed.OS = string(pod.Spec.OS.Name)
	}
	end := terminated(pod)
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		observed.Condition, observed.Message = Succeeded, terminationMessage(pod)
	case end != nil && end.ExitCode == 0 && end.Message != "": // regardless of injected containers
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

// readFailed distinguishes a failed mover from one that was stopped from outside. A pod that was terminated before
// its deletion vanishes at once, so a failed pod that is still deleting was killed.
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
		observed.Reason, observed.Message = LostVanished, "node "+pod.Spec.NodeName+" lost the mover, for example in a reboot"
	case terminated(pod) == nil:
		observed.Reason, observed.Message = LostRefused, fmt.Sprintf("node %s rejected the mover: %s: %s", pod.Spec.NodeName, pod.Status.Reason, pod.Status.Message)
	case killed(pod, terminated(pod)):
		observed.Reason = LostKilled
		observed.Message = fmt.Sprintf("mover was killed on node %s (exit code %d), for example by a restart of the node or its container runtime", pod.Spec.NodeName, terminated(pod).ExitCode)
	default:
		observed.Condition, observed.Message = Failed, failure(pod)
		observed.Canceled = strings.HasSuffix(strings.TrimSpace(terminated(pod).Message), canceledSuffix)
	}
}

// lostWithNode reports whether no runtime observed the end of the container. The kubelet reports
// ContainerStatusUnknown for a container unknown to its runtime (pkg/kubelet/kubelet_pods.go). containerd reports
// Unknown and 255 for one that it finds dead at its start (internal/cri/server/restart.go).
func lostWithNode(end *corev1.ContainerStateTerminated) bool {
	return end.Reason == "ContainerStatusUnknown" || end.Reason == "Unknown"
}

// Exit codes of a process that a signal ended: 128 plus its number.
const (
	exitSIGKILL = 137
	exitSIGTERM = 143
)

// killed reports whether a signal without a known reason ended the mover. A mover that runs out of memory is
// OOMKilled. One past a deadline has the reason in its pod. One that fails by itself exits with 1 and leaves a
// message.
func killed(pod *corev1.Pod, end *corev1.ContainerStateTerminated) bool {
	signaled := end.ExitCode == exitSIGKILL || end.ExitCode == exitSIGTERM
	return signaled && end.Reason != reasonOOM && pod.Status.Reason == "" && strings.TrimSpace(end.Message) == ""
}

// reasonOOM is the reason of a container whose memory limit or node was exhausted (CRI runtimes).
const reasonOOM = "OOMKilled"

// memoryLimit describes the memory limit of a mover that ran out of memory. Such a mover is not replaced: a
// replacement would need as much.
func memoryLimit(pod *corev1.Pod) string {
	mover := MoverContainer(pod)
	for _, container := range pod.Spec.Containers {
		if limit, limited := container.Resources.Limits[corev1.ResourceMemory]; limited && container.Name == mover {
			return "its memory limit is " + limit.String()
		}
	}
	return "it has no memory limit, so its node ran out of memory"
}

// canceledSuffix ends the termination message of a canceled mover. Only it distinguishes a canceled mover from a
// failed one (Velero's datapath.ErrCancelled).
const canceledSuffix = "data path is canceled"

// cannotRun reports whether a container with this waiting reason never starts (kubelet's pkg/kubelet/images).
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

// Starting reports whether a scheduled mover pod has not reached its image yet. Only the pod's Events contain what
// blocks it then, such as a volume that cannot be attached or mounted.
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

// failure returns the message of a failed mover: its own message first, then how it ended. A mover that was killed
// for its memory has no message of its own.
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

// MoverContainer returns the name of the mover's container, which is the UID of its custom resource
// (velero-protocol 0). Other containers may have been injected.
func MoverContainer(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return string(owner.UID)
	}
	return ""
}

// terminated returns how the mover's container ended; nil if it has not ended or never started.
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

// condition returns the pod's condition of that type; for DisruptionTarget only if it is true.
func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		found := &pod.Status.Conditions[i]
		if found.Type == kind && (kind != corev1.DisruptionTarget || found.Status == corev1.ConditionTrue) {
			return found
		}
	}
	return nil
}
