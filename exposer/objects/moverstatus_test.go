package objects

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

// Parts of pods, as the kubelet, the scheduler and the controllers write them.

func pod(phase corev1.PodPhase, more ...func(*corev1.Pod)) *corev1.Pod {
	created := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: phase}}
	created.OwnerReferences = []metav1.OwnerReference{{UID: "uid", Controller: new(true)}}
	for _, change := range more {
		change(created)
	}
	return created
}

func deleting(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{} }

func unscheduled(pod *corev1.Pod) { pod.Spec.NodeName = "" }

func restarted(pod *corev1.Pod) { pod.Annotations = map[string]string{api.AnnotationAttempt: "2"} }

func withReason(reason, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Reason, pod.Status.Message = reason, message }
}

func disrupted(status corev1.ConditionStatus, reason, message string) func(*corev1.Pod) {
	return with(corev1.PodCondition{Type: corev1.DisruptionTarget, Status: status, Reason: reason, Message: message})
}

func with(found corev1.PodCondition) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Conditions = append(pod.Status.Conditions, found) }
}

func container(state corev1.ContainerState) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: "uid", State: state})
	}
}

func waiting(reason, message string) func(*corev1.Pod) {
	return container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
}

func ended(code int32, reason, message string) func(*corev1.Pod) {
	return container(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}})
}

// running is a container that the kubelet still reports as running.
func running() func(*corev1.Pod) {
	return container(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
}

// limited is a mover with a memory limit.
func limited(memory string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers = []corev1.Container{{Name: "uid", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)},
		}}}
	}
}

func on(exposure Exposure) Exposure {
	exposure.Node = "n1"
	return exposure
}

func TestReadPodOfALostMover(t *testing.T) {
	const (
		lowMemory = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. "
		preempted = "default-scheduler: preempting to accommodate a higher priority pod"
		shutdown  = "Pod was terminated in response to imminent node shutdown."
	)
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want Exposure
	}{
		"evicted by the kubelet, container killed": {
			pod: pod(corev1.PodFailed, withReason("Evicted", lowMemory), disrupted(corev1.ConditionTrue, "TerminationByKubelet", lowMemory), ended(137, "Error", "")),
			want: Exposure{
				Condition: Lost, Reason: LostEvicted, Message: "mover was evicted: " + lowMemory,
			},
		},
		"evicted by the kubelet before it was started": {
			pod:  pod(corev1.PodFailed, withReason("Evicted", "Pod was rejected: The node had condition: [MemoryPressure]. ")),
			want: Exposure{Condition: Lost, Reason: LostEvicted, Message: "mover was evicted: Pod was rejected: The node had condition: [MemoryPressure]. "},
		},
		"evicted through the API, as for a drain": {
			pod:  pod(corev1.PodFailed, deleting, disrupted(corev1.ConditionTrue, "EvictionByEvictionAPI", "Eviction API: evicting"), ended(143, "Error", "")),
			want: Exposure{Condition: Lost, Reason: LostEvicted, Message: "mover was evicted: Eviction API: evicting"},
		},
		"evicted for a taint": {
			pod:  pod(corev1.PodFailed, deleting, disrupted(corev1.ConditionTrue, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"), ended(137, "Error", "")),
			want: Exposure{Condition: Lost, Reason: LostEvicted, Message: "mover was evicted: Taint manager: deleting due to NoExecute taint"},
		},
		"ended by a node that shuts down": {
			pod:  pod(corev1.PodFailed, withReason("Terminated", shutdown), disrupted(corev1.ConditionTrue, "TerminationByKubelet", shutdown), ended(143, "Error", "")),
			want: Exposure{Condition: Lost, Reason: LostEvicted, Message: "mover was evicted: " + shutdown},
		},
		"preempted by the scheduler": {
			pod:  pod(corev1.PodFailed, deleting, disrupted(corev1.ConditionTrue, "PreemptionByScheduler", preempted), ended(143, "Error", "")),
			want: Exposure{Condition: Lost, Reason: LostPreempted, Message: "mover was preempted: " + preempted},
		},
		"rejected because of insufficient CPU": {
			pod:  pod(corev1.PodFailed, withReason("OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu, requested: 500, used: 1900, capacity: 2000")),
			want: Exposure{Condition: Lost, Reason: LostRefused, Message: "node n1 rejected the mover: OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu, requested: 500, used: 1900, capacity: 2000"},
		},
		"refused by a device plugin": {
			pod:  pod(corev1.PodFailed, withReason("UnexpectedAdmissionError", "Pod was rejected: Allocate failed"), waiting("ContainerCreating", "")),
			want: Exposure{Condition: Lost, Reason: LostRefused, Message: "node n1 rejected the mover: UnexpectedAdmissionError: Pod was rejected: Allocate failed"},
		},
		"killed by a signal of unknown origin, as by a restarted container runtime": {
			pod:  pod(corev1.PodFailed, ended(137, "Error", "")),
			want: Exposure{Condition: Lost, Reason: LostKilled, Message: "mover was killed on node n1 (exit code 137), for example by a restart of the node or its container runtime"},
		},
		"stopped by a node shutdown that is not reported": {
			pod:  pod(corev1.PodFailed, ended(143, "Error", " \n")),
			want: Exposure{Condition: Lost, Reason: LostKilled, Message: "mover was killed on node n1 (exit code 143), for example by a restart of the node or its container runtime"},
		},
		"not known to the container runtime any more": {
			pod:  pod(corev1.PodFailed, ended(137, "ContainerStatusUnknown", "The container could not be located when the pod was terminated")),
			want: Exposure{Condition: Lost, Reason: LostVanished, Message: "node n1 lost the mover, for example in a reboot"},
		},
		"found dead by containerd after a reboot": {
			pod:  pod(corev1.PodFailed, ended(255, "Unknown", "")),
			want: Exposure{Condition: Lost, Reason: LostVanished, Message: "node n1 lost the mover, for example in a reboot"},
		},
		"deleted while it ran": {
			pod:  pod(corev1.PodFailed, deleting, ended(137, "Error", "")),
			want: Exposure{Condition: Lost, Reason: LostDeleted, Message: "mover pod was deleted while it ran"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, LostReasons(), test.want.Reason)
			require.Equal(t, on(test.want), ReadPod(test.pod))
		})
	}
}

func TestReadPodThatEnded(t *testing.T) {
	const result = `{"snapshotID":"k1"}`
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want Exposure
	}{
		"completed with a result": {
			pod:  pod(corev1.PodSucceeded, ended(0, "Completed", result)),
			want: Exposure{Condition: Succeeded, Message: result},
		},
		"completed and removed since": {
			pod:  pod(corev1.PodSucceeded, deleting, ended(0, "Completed", result)),
			want: Exposure{Condition: Succeeded, Message: result},
		},
		"completed though it was to be evicted": {
			pod:  pod(corev1.PodSucceeded, deleting, disrupted(corev1.ConditionTrue, "EvictionByEvictionAPI", "Eviction API: evicting"), ended(0, "Completed", result)),
			want: Exposure{Condition: Succeeded, Message: result},
		},
		"completed beside a sidecar of the cluster's own": {
			pod:  pod(corev1.PodSucceeded, injected(running()), ended(0, "Completed", result)),
			want: Exposure{Condition: Succeeded, Message: result},
		},
		"completed without a container status": {
			pod:  pod(corev1.PodSucceeded),
			want: Exposure{Condition: Succeeded},
		},
		"exit 1 with a message": {
			pod:  pod(corev1.PodFailed, with(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}), ended(1, "Error", "Failed to run data path service for PVB b1: no such bucket\n")),
			want: Exposure{Condition: Failed, Message: "Failed to run data path service for PVB b1: no such bucket (exit code 1)"},
		},
		"exit 1 without a word": {
			pod:  pod(corev1.PodFailed, ended(1, "Error", "")),
			want: Exposure{Condition: Failed, Message: "mover left no message (exit code 1)"},
		},
		"out of memory": {
			pod:  pod(corev1.PodFailed, limited("512Mi"), ended(137, "OOMKilled", "")),
			want: Exposure{Condition: Failed, Message: "mover left no message (exit code 137, out of memory (OOMKilled), its memory limit is 512Mi)"},
		},
		"out of memory of the node": {
			pod:  pod(corev1.PodFailed, ended(137, "OOMKilled", "")),
			want: Exposure{Condition: Failed, Message: "mover left no message (exit code 137, out of memory (OOMKilled), it has no memory limit, so its node ran out of memory)"},
		},
		"killed by a signal after it reported its failure": {
			pod:  pod(corev1.PodFailed, ended(137, "Error", "no such bucket")),
			want: Exposure{Condition: Failed, Message: "no such bucket (exit code 137)"},
		},
		"exit 255 of the mover": {
			pod:  pod(corev1.PodFailed, ended(255, "Error", "")),
			want: Exposure{Condition: Failed, Message: "mover left no message (exit code 255)"},
		},
		"its command is not in the image": {
			pod:  pod(corev1.PodFailed, ended(128, "StartError", `exec: "/velero": no such file or directory`)),
			want: Exposure{Condition: Failed, Message: `exec: "/velero": no such file or directory (exit code 128, StartError)`},
		},
		"a pod with a reason": {
			pod:  pod(corev1.PodFailed, withReason("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"), ended(137, "Error", "")),
			want: Exposure{Condition: Failed, Message: "mover left no message (exit code 137, DeadlineExceeded Pod was active on the node longer than the specified deadline)"},
		},
		"stopped by a cancel": {
			pod:  pod(corev1.PodFailed, ended(1, "Error", "Failed to run data path service for PVB b1: data path is canceled")),
			want: Exposure{Condition: Failed, Canceled: true, Message: "Failed to run data path service for PVB b1: data path is canceled (exit code 1)"},
		},
		"stopped by a cancel, with a trailing newline": {
			pod:  pod(corev1.PodFailed, ended(1, "Error", "data path is canceled\n")),
			want: Exposure{Condition: Failed, Canceled: true, Message: "data path is canceled (exit code 1)"},
		},
		"text about a cancel before the end of the message": {
			pod:  pod(corev1.PodFailed, ended(1, "Error", "data path is canceled: no such bucket")),
			want: Exposure{Condition: Failed, Message: "data path is canceled: no such bucket (exit code 1)"},
		},
		"a disruption that did not come to be": {
			pod:  pod(corev1.PodFailed, disrupted(corev1.ConditionFalse, "PreemptionByScheduler", ""), ended(1, "Error", "no such bucket")),
			want: Exposure{Condition: Failed, Message: "no such bucket (exit code 1)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, on(test.want), ReadPod(test.pod))
		})
	}
}
