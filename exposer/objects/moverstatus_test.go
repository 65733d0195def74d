package objects

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

// Parts of pods, as the kubelet, the scheduler and the controllers write them.

func pod(phase corev1.PodPhase, more ...func(*corev1.Pod)) *corev1.Pod {
	created := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1", OS: &corev1.PodOS{Name: corev1.Linux}}, Status: corev1.PodStatus{Phase: phase}}
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

func disrupted(reason, message string) func(*corev1.Pod) {
	return with(corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: message})
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

// exposureTest is a pod, and the condition, reason and message of its exposure.
type exposureTest struct {
	pod  *corev1.Pod
	want string
}

func requireExposures(t *testing.T, tests map[string]exposureTest) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			read := ReadPod(test.pod)
			if test.pod != nil {
				require.Equal(t, []string{test.pod.Spec.NodeName, "linux"}, []string{read.Node, string(read.OS)})
			}
			have := read.Condition.String()
			if read.Condition == Lost {
				require.Contains(t, LostReasons(), read.Reason)
				have += " " + string(read.Reason)
			}
			if read.Canceled {
				have += " canceled"
			}
			if read.Attempt != 0 {
				have += fmt.Sprintf(" of attempt %d", read.Attempt)
			}
			if read.Message != "" {
				have += ": " + read.Message
			}
			require.Equal(t, test.want, have)
		})
	}
}

func TestReadPodOfALostMover(t *testing.T) {
	const (
		lowMemory = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. "
		preempted = "default-scheduler: preempting to accommodate a higher priority pod"
		shutdown  = "Pod was terminated in response to imminent node shutdown."
	)
	requireExposures(t, map[string]exposureTest{
		"evicted by the kubelet, container killed": {
			pod(corev1.PodFailed, withReason("Evicted", lowMemory), disrupted("TerminationByKubelet", "another text"), ended(137, "Error", "")),
			"Lost evicted: mover was evicted: " + lowMemory,
		},
		"evicted by the kubelet before it was started": {
			pod(corev1.PodFailed, withReason("Evicted", "Pod was rejected: The node had condition: [MemoryPressure]. ")),
			"Lost evicted: mover was evicted: Pod was rejected: The node had condition: [MemoryPressure]. ",
		},
		"evicted through the API, as for a drain": {
			pod(corev1.PodFailed, deleting, disrupted("EvictionByEvictionAPI", "Eviction API: evicting"), ended(143, "Error", "")),
			"Lost evicted: mover was evicted: Eviction API: evicting",
		},
		"evicted for a taint": {
			pod(corev1.PodFailed, deleting, disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"), ended(137, "Error", "")),
			"Lost evicted: mover was evicted: Taint manager: deleting due to NoExecute taint",
		},
		"ended by a node that shuts down": {
			pod(corev1.PodFailed, withReason("Terminated", shutdown), disrupted("TerminationByKubelet", shutdown), ended(143, "Error", "")),
			"Lost evicted: mover was evicted: " + shutdown,
		},
		"preempted by the scheduler": {
			pod(corev1.PodFailed, deleting, disrupted("PreemptionByScheduler", preempted), ended(143, "Error", "")),
			"Lost preempted: mover was preempted: " + preempted,
		},
		"rejected because of insufficient CPU": {
			pod(corev1.PodFailed, withReason("OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu, requested: 500, used: 1900, capacity: 2000")),
			"Lost refused: node n1 rejected the mover: OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu, requested: 500, used: 1900, capacity: 2000",
		},
		"refused by a device plugin": {
			pod(corev1.PodFailed, withReason("UnexpectedAdmissionError", "Pod was rejected: Allocate failed"), waiting("ContainerCreating", "")),
			"Lost refused: node n1 rejected the mover: UnexpectedAdmissionError: Pod was rejected: Allocate failed",
		},
		"killed by a signal of unknown origin, as by a restarted container runtime": {
			pod(corev1.PodFailed, ended(137, "Error", "")),
			"Lost killed: mover was killed on node n1 (exit code 137), for example by a restart of the node or its container runtime",
		},
		"stopped by a node shutdown that is not reported": {
			pod(corev1.PodFailed, ended(143, "Error", " \n")),
			"Lost killed: mover was killed on node n1 (exit code 143), for example by a restart of the node or its container runtime",
		},
		"not known to the container runtime any more": {
			pod(corev1.PodFailed, ended(137, "ContainerStatusUnknown", "The container could not be located when the pod was terminated")),
			"Lost vanished: node n1 lost the mover, for example in a reboot",
		},
		"found dead by containerd after a reboot": {pod(corev1.PodFailed, ended(255, "Unknown", "")), "Lost vanished: node n1 lost the mover, for example in a reboot"},
		"deleted while it ran":                    {pod(corev1.PodFailed, deleting, ended(137, "Error", "")), "Lost deleted: mover pod was deleted while it ran"},
	})
}

func TestReadPodThatEnded(t *testing.T) {
	const result = `{"snapshotID":"k1"}`
	requireExposures(t, map[string]exposureTest{
		"completed with a result":     {pod(corev1.PodSucceeded, ended(0, "Completed", result)), "Succeeded: " + result},
		"completed and removed since": {pod(corev1.PodSucceeded, deleting, ended(0, "Completed", result)), "Succeeded: " + result},
		"completed though it was to be evicted": {
			pod(corev1.PodSucceeded, deleting, disrupted("EvictionByEvictionAPI", "Eviction API: evicting"), ended(0, "Completed", result)),
			"Succeeded: " + result,
		},
		"completed without a container status": {pod(corev1.PodSucceeded), "Succeeded"},
		"exit 1 with a message": {
			pod(corev1.PodFailed, with(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}), ended(1, "Error", "Failed to run data path service for PVB b1: no such bucket\n")),
			"Failed: Failed to run data path service for PVB b1: no such bucket (exit code 1)",
		},
		"exit 1 without a word": {pod(corev1.PodFailed, ended(1, "Error", "")), "Failed: mover left no message (exit code 1)"},
		"out of memory": {
			pod(corev1.PodFailed, limited("512Mi"), ended(137, "OOMKilled", "")),
			"Failed: mover left no message (exit code 137, out of memory (OOMKilled), its memory limit is 512Mi)",
		},
		"out of memory of the node": {
			pod(corev1.PodFailed, limited("512Mi"), func(p *corev1.Pod) { p.Spec.Containers[0].Name = "proxy" }, ended(137, "OOMKilled", "")),
			"Failed: mover left no message (exit code 137, out of memory (OOMKilled), it has no memory limit, so its node ran out of memory)",
		},
		"killed by a signal after it reported its failure": {pod(corev1.PodFailed, ended(137, "Error", "no such bucket")), "Failed: no such bucket (exit code 137)"},
		"exit 255 of the mover":                            {pod(corev1.PodFailed, ended(255, "Error", "")), "Failed: mover left no message (exit code 255)"},
		"its command is not in the image": {
			pod(corev1.PodFailed, ended(128, "StartError", `exec: "/velero": no such file or directory`)),
			`Failed: exec: "/velero": no such file or directory (exit code 128, StartError)`,
		},
		"a pod with a reason": {
			pod(corev1.PodFailed, withReason("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"), ended(137, "Error", "")),
			"Failed: mover left no message (exit code 137, DeadlineExceeded Pod was active on the node longer than the specified deadline)",
		},
		"stopped by a cancel": {
			pod(corev1.PodFailed, ended(1, "Error", "Failed to run data path service for PVB b1: data path is canceled\n")),
			"Failed canceled: Failed to run data path service for PVB b1: data path is canceled (exit code 1)",
		},
		"text about a cancel before the end of the message": {
			pod(corev1.PodFailed, ended(1, "Error", "data path is canceled: no such bucket")),
			"Failed: data path is canceled: no such bucket (exit code 1)",
		},
		"an end without a reason": {pod(corev1.PodFailed, ended(1, "", "no such bucket")), "Failed: no such bucket (exit code 1)"},
		"a disruption that did not come to be": {
			pod(corev1.PodFailed, with(corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse, Reason: "PreemptionByScheduler"}), ended(1, "Error", "no such bucket")),
			"Failed: no such bucket (exit code 1)",
		},
	})
}

func TestReadPendingPod(t *testing.T) {
	const unschedulable = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector."
	requireExposures(t, map[string]exposureTest{
		"no pod":                         {nil, "Absent"},
		"just created":                   {pod("", unscheduled), "Pending"},
		"just bound":                     {pod(corev1.PodPending), "Pending"},
		"running":                        {pod(corev1.PodRunning, running()), "Running"},
		"being deleted":                  {pod(corev1.PodRunning, deleting, running()), "Terminating: mover pod is being deleted"},
		"being deleted before it ran":    {pod(corev1.PodPending, deleting, unscheduled), "Terminating: mover pod is being deleted"},
		"being preempted: it still runs": {pod(corev1.PodRunning, deleting, disrupted("PreemptionByScheduler", "preempting"), running()), "Terminating: mover pod is being deleted"},
		"a node that does not answer":    {pod(corev1.PodUnknown, running()), "Pending"},
		"unschedulable": {
			pod(corev1.PodPending, unscheduled, with(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: unschedulable})),
			"Pending: mover pod is not scheduled: Unschedulable: " + unschedulable,
		},
		"scheduled": {
			pod(corev1.PodPending, with(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}), waiting("ContainerCreating", "")),
			"Pending: mover container is waiting: ContainerCreating",
		},
		"scheduled, and not observed by its kubelet": {
			pod(corev1.PodPending, with(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, Reason: "x"})), "Pending",
		},
		"an image that cannot be pulled may come": {
			pod(corev1.PodPending, waiting("ImagePullBackOff", `Back-off pulling image "velero:x"`)),
			`Pending: mover container is waiting: ImagePullBackOff: Back-off pulling image "velero:x"`,
		},
		"a secret that is missing may come": {
			pod(corev1.PodPending, waiting("CreateContainerConfigError", `secret "cloud-credentials" not found`)),
			`Pending: mover container is waiting: CreateContainerConfigError: secret "cloud-credentials" not found`,
		},
		"an image name that is none": {
			pod(corev1.PodPending, waiting("InvalidImageName", `Failed to apply default image tag "VELERO"`)),
			`Unrunnable: mover container is waiting: InvalidImageName: Failed to apply default image tag "VELERO"`,
		},
		"an image that must not be pulled": {
			pod(corev1.PodPending, waiting("ErrImageNeverPull", `Container image "velero:x" is not present with pull policy of Never`)),
			`Unrunnable: mover container is waiting: ErrImageNeverPull: Container image "velero:x" is not present with pull policy of Never`,
		},
		"a mover that was created after two others": {pod(corev1.PodRunning, restarted, running()), "Running of attempt 2"},
	})
}

func TestAPodIsStartingUntilItsImageIsPulled(t *testing.T) {
	waiting := func(reason string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
			{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}},
		}}
	}
	for name, test := range map[string]struct {
		node   string
		status corev1.PodStatus
		want   bool
	}{
		"not before it has a node":                 {status: corev1.PodStatus{Phase: corev1.PodPending}},
		"on a node that has not reported a status": {node: "n1", status: corev1.PodStatus{Phase: corev1.PodPending}, want: true},
		"while its volumes are mounted":            {node: "n1", status: waiting("ContainerCreating"), want: true},
		"not when its image is the trouble":        {node: "n1", status: waiting("ImagePullBackOff")},
		"not when another container runs":          {node: "n1", status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{}}}},
		"not when it runs":                         {node: "n1", status: corev1.PodStatus{Phase: corev1.PodRunning}},
	} {
		require.Equal(t, test.want, Starting(&corev1.Pod{Spec: corev1.PodSpec{NodeName: test.node}, Status: test.status}), name)
	}
}

// injected is the state of a container that a webhook added.
func injected(state func(*corev1.Pod)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		state(pod)
		pod.Status.ContainerStatuses[len(pod.Status.ContainerStatuses)-1].Name = "proxy"
	}
}

func TestOnlyTheMoversContainerCounts(t *testing.T) {
	const result = `{"snapshotID":"k1"}`
	requireExposures(t, map[string]exposureTest{
		"completed while a sidecar runs":        {pod(corev1.PodRunning, injected(running()), ended(0, "Completed", result)), "Succeeded: " + result},
		"completed after a sidecar that failed": {pod(corev1.PodFailed, injected(ended(1, "Error", "proxy: address in use")), ended(0, "Completed", result)), "Succeeded: " + result},
		"exit 1 after a sidecar that completed": {
			pod(corev1.PodFailed, injected(ended(0, "Completed", result)), ended(1, "Error", "no such bucket")),
			"Failed: no such bucket (exit code 1)",
		},
		"exit 1 while a sidecar runs": {pod(corev1.PodRunning, injected(running()), ended(1, "Error", "no such bucket")), "Failed: no such bucket (exit code 1)"},
		"evicted when it had just completed": {
			pod(corev1.PodFailed, withReason("Evicted", "The node was low on resource: memory. "), ended(0, "Completed", result)),
			"Succeeded: " + result,
		},
		"evicted, and ended with exit code 0 before it was done": {
			pod(corev1.PodFailed, withReason("Evicted", "The node was low on resource: memory. "), ended(0, "Completed", "")),
			"Lost evicted: mover was evicted: The node was low on resource: memory. ",
		},
		"a sidecar that ended before the mover": {pod(corev1.PodRunning, injected(ended(0, "Completed", result)), running()), "Running"},
	})
}
