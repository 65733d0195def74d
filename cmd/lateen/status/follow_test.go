package status

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// podsOf returns the pods and ConfigMaps of a fake cluster as sources.
func podsOf(client *fake.Clientset) []source {
	return []source{
		from(podsName, "velero", &corev1.Pod{}, client.CoreV1().Pods("velero"), metav1.ListOptions{}),
		from(configsName, "velero", &corev1.ConfigMap{}, client.CoreV1().ConfigMaps("velero"), metav1.ListOptions{}),
	}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name}}
}

// drawn follows a fake cluster until the test ends, and returns the channel of its drawings.
func drawn(t *testing.T, client *fake.Clientset, clk clock.Clock) (<-chan *Snapshot, func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	drawings, ended := make(chan *Snapshot), make(chan error, 1)
	how := WatchOptions{Namespace: "velero", Clock: clk, MinInterval: time.Second, MaxInterval: time.Minute, SyncTimeout: 5 * time.Second}
	go func() {
		ended <- (&Clients{kube: client}).follow(ctx, how, podsOf(client), func(seen *Snapshot) error {
			select {
			case drawings <- seen:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	end := func() error { stop(); return received(t, ended) }
	t.Cleanup(stop)
	return drawings, end
}

func received[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(5 * time.Second):
		require.Fail(t, "nothing came")
	}
	return value
}

// paused waits until the follower waits for the clock.
func paused(t *testing.T, clk *clocktesting.FakeClock) {
	t.Helper()
	require.Eventually(t, func() bool { return clk.Waiters() == 2 }, 5*time.Second, time.Millisecond)
}

func TestWhatChangesIsDrawnAtMostOnceInAPace(t *testing.T) {
	client, clk := fake.NewClientset(pod("one")), clocktesting.NewFakeClock(time.Now())
	drawings, end := drawn(t, client, clk)
	require.Len(t, received(t, drawings).pods, 1)
	paused(t, clk)
	for _, name := range []string{"two", "three"} {
		_, err := client.CoreV1().Pods("velero").Create(t.Context(), pod(name), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	select {
	case <-drawings:
		require.Fail(t, "drawn before its time")
	case <-time.After(50 * time.Millisecond):
	}
	clk.Step(time.Second)
	seen := received(t, drawings)
	for len(seen.pods) < 3 { // the last event may arrive later
		paused(t, clk)
		clk.Step(time.Second)
		seen = received(t, drawings)
	}
	require.NoError(t, end())
}

func TestWhatDoesNotChangeIsDrawnAllTheSameOnceInAWhile(t *testing.T) {
	client, clk := fake.NewClientset(), clocktesting.NewFakeClock(time.Now())
	drawings, end := drawn(t, client, clk)
	before := received(t, drawings)
	paused(t, clk)
	clk.Step(time.Minute)
	require.Equal(t, time.Minute, received(t, drawings).now.Sub(before.now))
	require.NoError(t, end())
}

func forbid(client *fake.Clientset, resource string) {
	refuse := func(action clienttesting.Action) error {
		return apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("not you"))
	}
	client.PrependReactor("list", resource, func(action clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refuse(action) })
}

func TestWhatMayNotBeReadIsNamedAndTheRestIsDrawn(t *testing.T) {
	client := fake.NewClientset(pod("one"))
	forbid(client, "configmaps")
	drawings, end := drawn(t, client, clock.RealClock{})
	seen := received(t, drawings)
	require.Len(t, seen.pods, 1)
	require.Len(t, seen.unreadable, 1)
	require.Equal(t, configsName, seen.unreadable[0].Resource)
	require.NoError(t, end())
}

func TestWhoMayReadNothingIsToldSo(t *testing.T) {
	client := fake.NewClientset()
	forbid(client, "*")
	how := WatchOptions{Namespace: "velero", Clock: clock.RealClock{}, MinInterval: time.Second, MaxInterval: time.Minute, SyncTimeout: 5 * time.Second}
	err := (&Clients{kube: client}).follow(t.Context(), how, podsOf(client), func(*Snapshot) error { return nil })
	require.ErrorContains(t, err, "list pods: ")
}

func TestAListNamesWhatMayNotBeReadEvenIfThatIsAll(t *testing.T) {
	client := fake.NewClientset(pod("one"))
	forbid(client, "configmaps")
	objects, unreadable, err := list(t.Context(), podsOf(client))
	require.NoError(t, err)
	require.Len(t, objects, 1)
	require.Equal(t, []Unreadable{{configsName, "velero", "not allowed to list or watch them; docs/command-line.md lists the required RBAC rules"}}, unreadable)
	forbid(client, "pods")
	_, unreadable, err = list(t.Context(), podsOf(client))
	require.ErrorContains(t, err, "list pods: ")
	require.Len(t, unreadable, 2)
}

func TestADrawingThatFailsEndsIt(t *testing.T) {
	how := WatchOptions{Namespace: "velero", Clock: clock.RealClock{}, MinInterval: time.Second, MaxInterval: time.Minute, SyncTimeout: 5 * time.Second}
	broken := errors.New("broken pipe")
	client := fake.NewClientset()
	err := (&Clients{kube: client}).follow(t.Context(), how, podsOf(client), func(*Snapshot) error { return broken })
	require.ErrorIs(t, err, broken)
}

func TestWhatSomethingWaitsForIsFollowedToo(t *testing.T) {
	restore := &velerov1.PodVolumeRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "restore"},
		Spec:       velerov1.PodVolumeRestoreSpec{UploaderType: "kopia", Pod: corev1.ObjectReference{Namespace: "app", Name: "web"}},
	}
	seen := Gather("velero", time.Now(), []runtime.Object{restore}, nil)
	require.Equal(t, []dependency{{podsName, "app"}}, seen.dependencies())
	client := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "web"}})
	asked := (&Clients{kube: client}).dependencies(seen.dependencies()[0])
	objects, err := asked.list(t.Context())
	require.NoError(t, err)
	require.Len(t, objects, 1)
}
