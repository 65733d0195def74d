package objects

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestReadPendingPod(t *testing.T) {
	const unschedulable = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector."
	requireExposures(t, map[string]exposureTest{
		"no pod":                      {nil, "Absent"},
		"just created":                {pod("", unscheduled), "Pending"},
		"just bound":                  {pod(corev1.PodPending), "Pending"},
		"running":                     {pod(corev1.PodRunning, running()), "Running"},
		"being deleted":               {pod(corev1.PodRunning, deleting, running()), "Terminating: mover pod is being deleted"},
		"being deleted before it ran": {pod(corev1.PodPending, deleting, unscheduled), "Terminating: mover pod is being deleted"},
		"being preempted: it still runs": {
			pod(corev1.PodRunning, deleting, disrupted("PreemptionByScheduler", "preempting"), running()),
			"Terminating: mover pod is being deleted",
		},
		"a node that does not answer": {pod(corev1.PodUnknown, running()), "Pending"},
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
		"not when it runs":                         {node: "n1", status: corev1.PodStatus{Phase: corev1.PodRunning}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, Starting(&corev1.Pod{Spec: corev1.PodSpec{NodeName: test.node}, Status: test.status}))
		})
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
		"completed while a sidecar runs": {
			pod(corev1.PodRunning, injected(running()), ended(0, "Completed", result)),
			"Succeeded: " + result,
		},
		"completed after a sidecar that failed": {
			pod(corev1.PodFailed, injected(ended(1, "Error", "proxy: address in use")), ended(0, "Completed", result)),
			"Succeeded: " + result,
		},
		"completed after a sidecar that left a message": {
			pod(corev1.PodSucceeded, injected(ended(0, "Completed", "bye")), ended(0, "Completed", result)),
			"Succeeded: " + result,
		},
		"exit 1 after a sidecar that completed": {
			pod(corev1.PodFailed, injected(ended(0, "Completed", result)), ended(1, "Error", "no such bucket")),
			"Failed: no such bucket (exit code 1)",
		},
		"exit 1 while a sidecar runs": {
			pod(corev1.PodRunning, injected(running()), ended(1, "Error", "no such bucket")),
			"Failed: no such bucket (exit code 1)",
		},
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
