package reconcile

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

// fixture is a PodVolumeBackup on the agent of its node, with an API server that can fail. Its kubelet acts when nothing
// else does. The pod caches always match the API server.
type fixture struct {
	*single[*velerov1.PodVolumeBackup]
	fault fault
	calls map[string]int // by verb and resource
}

// fault is one call that fails.
type fault struct {
	call      string // verb and resource
	ordinal   int    // number of the call that fails
	err       error
	committed bool // the call took effect, only its answer was lost
}

func newFixture(t *testing.T, of fault) *fixture {
	t.Helper()
	f := &fixture{single: newBackup(), fault: of, calls: map[string]int{}}
	require.NoError(t, f.kube.Tracker().Add(sourcePod()))
	f.kube.PrependReactor("*", "*", f.react)
	f.Agent.Fleet, f.Pods, f.Client, f.Exposer.Source = followerFleet{}, f, f, f.Pod
	f.LivePod = func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
		return f.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	return f
}

// fails counts a call and reports whether it is the one that fails.
func (f *fixture) fails(call string) bool {
	f.calls[call]++
	return f.fault.call == call && f.fault.ordinal == f.calls[call]
}

func (f *fixture) react(action clienttesting.Action) (bool, runtime.Object, error) {
	call := action.GetVerb() + " " + action.GetResource().Resource
	if sub := action.GetSubresource(); sub != "" {
		call += "/" + sub
	}
	return f.fails(call), nil, f.fault.err
}

// Patch fails if it is the call that fails, before or after it took effect.
func (f *fixture) Patch(ctx context.Context, name string, pt types.PatchType, patch []byte, opts metav1.PatchOptions, sub ...string) (*velerov1.PodVolumeBackup, error) {
	wrong := f.fails("patch podvolumebackups")
	if wrong && !f.fault.committed {
		return nil, f.fault.err
	}
	written, err := f.single.Patch(ctx, name, pt, patch, opts, sub...)
	if wrong {
		return nil, f.fault.err
	}
	return written, err
}

func (f *fixture) Mover(string) *corev1.Pod { return f.Pod(testKey) }

func (f *fixture) Pod(key string) *corev1.Pod {
	name := types.NamespacedName{Namespace: "app", Name: "db"}
	if key == testKey {
		name = types.NamespacedName{Namespace: "velero", Name: "b1"}
	}
	object, err := f.kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), name.Namespace, name.Name)
	if err != nil {
		return nil
	}
	return object.(*corev1.Pod).DeepCopy()
}

// kubelet advances the mover by one phase, as far as its resource allows.
func (f *fixture) kubelet(t *testing.T) {
	t.Helper()
	pod := f.Mover(testKey)
	if pod == nil {
		return
	}
	switch {
	case pod.Spec.NodeName == "":
		pod.UID, pod.Spec.NodeName, pod.Status.Phase = "mover-uid", testNode, corev1.PodRunning
	case f.object.Status.Phase == velerov1.PodVolumeBackupPhaseInProgress && pod.Status.Phase == corev1.PodRunning:
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "b1-uid", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Message: `{"snapshotID":"snap","source":{"byPath":"/b1-uid"},"totalBytes":10}`,
		}}}}
	default:
		return
	}
	require.NoError(t, f.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "velero"))
}

// run reconciles until the transfer is terminal and cleaned up.
func (f *fixture) run(t *testing.T) {
	t.Helper()
	const most = 40
	for range most {
		if _, err := f.Reconcile(t.Context(), testKey); err != nil {
			t.Log("step:", err)
		}
		f.kubelet(t)
		if f.object.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted && len(f.object.Finalizers) == 0 {
			return
		}
		f.clock.SetTime(f.clock.Now().Add(time.Second))
	}
	require.Failf(t, "did not converge", "after %d steps: %+v, mover left: %v", most, f.object.Status, f.Mover(testKey) != nil)
}
