package transfer

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestARestoreWaitsForTheInitContainer(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	with := func(statuses ...corev1.ContainerStatus) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "db"}, Status: corev1.PodStatus{InitContainerStatuses: statuses}}
	}
	waits := "init container restore-wait of pod app/db is not running"
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		awaits string
	}{
		"no pod":                                   {nil, "its pod does not run on this node"},
		"a pod that was just bound":                {with(), waits},
		"another one runs before it":               {with(corev1.ContainerStatus{Name: "setup", State: running}, corev1.ContainerStatus{Name: "restore-wait"}), waits},
		"it runs":                                  {with(corev1.ContainerStatus{Name: "restore-wait", State: running}), ""},
		"it runs though not the first":             {with(corev1.ContainerStatus{Name: "setup", State: ended}, corev1.ContainerStatus{Name: "restore-wait", State: running}), ""},
		"it has ended":                             {with(corev1.ContainerStatus{Name: "restore-wait", State: ended}), waits},
		"the init container of Velero before 1.16": {with(corev1.ContainerStatus{Name: "restic-wait", State: running}), waits},
	} {
		require.Equal(t, test.awaits, InitBlocker(test.pod), name)
	}
}

func TestAPodResumesOnceItsInitContainerHasSucceeded(t *testing.T) {
	succeeded := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	failed := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	wait := func(now, before corev1.ContainerState) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{
			{Name: "setup", State: succeeded}, {Name: "restore-wait", State: now, LastTerminationState: before},
		}}
	}
	for name, test := range map[string]struct {
		status  corev1.PodStatus
		resumed bool
	}{
		"it waits":                             {wait(running, corev1.ContainerState{}), false},
		"it was killed and will run again":     {wait(failed, corev1.ContainerState{}), false},
		"it runs again after it was killed":    {wait(running, failed), false},
		"it succeeded":                         {wait(succeeded, corev1.ContainerState{}), true},
		"it runs again after it had succeeded": {wait(running, succeeded), true},
		"its node was just assigned":           {corev1.PodStatus{Phase: corev1.PodPending}, false},
		"its containers run":                   {corev1.PodStatus{Phase: corev1.PodRunning}, true},
		"its containers have ended":            {corev1.PodStatus{Phase: corev1.PodSucceeded}, true},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "db"}, Status: test.status}
		why := PodResumed(pod, "data")
		require.Equal(t, test.resumed, why != "", name)
		if test.resumed {
			require.Contains(t, why, "pod app/db has ended")
			require.Contains(t, why, "volume data")
		}
	}
	require.Empty(t, PodResumed(nil, "data"), "a deleted pod is reported elsewhere")
}

func TestARestoreWaitsForTheFirstConsumer(t *testing.T) {
	waits, binds := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	class := func(mode *storagev1.VolumeBindingMode) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, VolumeBindingMode: mode}
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data"}}
	placed := claim.DeepCopy()
	placed.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "n1"}
	require.Equal(t, "claim app/data has no consumer, and storage class fast waits for the first", ConsumerBlocker(claim, class(&waits)))
	require.Empty(t, ConsumerBlocker(placed, class(&waits)))
	require.Empty(t, ConsumerBlocker(claim, class(&binds)))
	require.Empty(t, ConsumerBlocker(claim, class(nil)), "Immediate is the default")
}
