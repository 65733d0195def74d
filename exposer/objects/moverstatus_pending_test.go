package objects

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestReadPendingPod(t *testing.T) {
	const unschedulable = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector."
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want Exposure
	}{
		"no pod":        {want: Exposure{Condition: Absent}},
		"just created":  {pod: pod("", unscheduled), want: Exposure{Condition: Pending}},
		"just bound":    {pod: pod(corev1.PodPending), want: on(Exposure{Condition: Pending})},
		"running":       {pod: pod(corev1.PodRunning, running()), want: on(Exposure{Condition: Running})},
		"being deleted": {pod: pod(corev1.PodRunning, deleting, running()), want: on(Exposure{Condition: Terminating, Message: "mover pod is being deleted"})},
		"being deleted before it ran": {
			pod: pod(corev1.PodPending, deleting, unscheduled), want: Exposure{Condition: Terminating, Message: "mover pod is being deleted"},
		},
		"being preempted: it still runs": {
			pod:  pod(corev1.PodRunning, deleting, disrupted(corev1.ConditionTrue, "PreemptionByScheduler", "preempting"), running()),
			want: on(Exposure{Condition: Terminating, Message: "mover pod is being deleted"}),
		},
		"a node that does not answer": {
			pod: pod(corev1.PodUnknown, running()), want: on(Exposure{Condition: Pending}),
		},
		"unschedulable": {
			pod:  pod(corev1.PodPending, unscheduled, with(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: unschedulable})),
			want: Exposure{Condition: Pending, Message: "mover pod is not scheduled: Unschedulable: " + unschedulable},
		},
		"scheduled": {
			pod:  pod(corev1.PodPending, with(corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}), waiting("ContainerCreating", "")),
			want: on(Exposure{Condition: Pending, Message: "mover container is waiting: ContainerCreating"}),
		},
		"an image that cannot be pulled may come": {
			pod:  pod(corev1.PodPending, waiting("ImagePullBackOff", `Back-off pulling image "velero:x"`)),
			want: on(Exposure{Condition: Pending, Message: `mover container is waiting: ImagePullBackOff: Back-off pulling image "velero:x"`}),
		},
		"a secret that is missing may come": {
			pod:  pod(corev1.PodPending, waiting("CreateContainerConfigError", `secret "cloud-credentials" not found`)),
			want: on(Exposure{Condition: Pending, Message: `mover container is waiting: CreateContainerConfigError: secret "cloud-credentials" not found`}),
		},
		"an image name that is none": {
			pod:  pod(corev1.PodPending, waiting("InvalidImageName", `Failed to apply default image tag "VELERO"`)),
			want: on(Exposure{Condition: Unrunnable, Message: `mover container is waiting: InvalidImageName: Failed to apply default image tag "VELERO"`}),
		},
		"an image that must not be pulled": {
			pod:  pod(corev1.PodPending, waiting("ErrImageNeverPull", `Container image "velero:x" is not present with pull policy of Never`)),
			want: on(Exposure{Condition: Unrunnable, Message: `mover container is waiting: ErrImageNeverPull: Container image "velero:x" is not present with pull policy of Never`}),
		},
		"a mover that was created after two others": {
			pod: pod(corev1.PodRunning, restarted, running()), want: on(Exposure{Condition: Running, Attempt: 2}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, ReadPod(test.pod))
		})
	}
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
