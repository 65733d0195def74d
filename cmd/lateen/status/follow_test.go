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

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/api"
)

// podsOf returns the pods and ConfigMaps of a fake cluster as sources.
func podsOf(client *fake.Clientset) []source {
	return []source{
		from(view.ResourcePods, "velero", &corev1.Pod{}, client.CoreV1().Pods("velero"), metav1.ListOptions{}),
		from(view.ResourceConfigMaps, "velero", &corev1.ConfigMap{}, client.CoreV1().ConfigMaps("velero"), metav1.ListOptions{}),
	}
}

// pod returns an agent on a node of its name.
func pod(name string) *corev1.Pod {
	labels := map[string]string{api.LabelRole: api.RoleNodeAgent}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name, Labels: labels}, Spec: corev1.PodSpec{NodeName: name}}
}

// follow watches a fake cluster until the test ends, and returns the channel of its snapshots.
func follow(t *testing.T, client *fake.Clientset, clk clock.Clock) (<-chan *diagnose.Snapshot, func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	snapshots, ended := make(chan *diagnose.Snapshot), make(chan error, 1)
	options := WatchOptions{Namespace: "velero", Clock: clk, MinInterval: time.Second, MaxInterval: time.Minute, SyncTimeout: 5 * time.Second}
	go func() {
		ended <- (&Clients{kube: client}).follow(ctx, options, podsOf(client), func(snapshot *diagnose.Snapshot) error {
			select {
			case snapshots <- snapshot:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	end := func() error { stop(); return receive(t, ended) }
	t.Cleanup(stop)
	return snapshots, end
}

func receive[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(time.Minute):
		require.Fail(t, "nothing received")
	}
	return value
}

// waitForClock waits until the follower waits for the clock.
func waitForClock(t *testing.T, clk *clocktesting.FakeClock) {
	t.Helper()
	require.Eventually(t, func() bool { return clk.Waiters() == 2 }, time.Minute, time.Millisecond)
}

func TestChangesAreDrawnAtMostOncePerInterval(t *testing.T) {
	client, clk := fake.NewClientset(pod("one")), clocktesting.NewFakeClock(time.Now())
	snapshots, end := follow(t, client, clk)
	require.Len(t, receive(t, snapshots).Report().Nodes, 1)
	waitForClock(t, clk)
	for _, name := range []string{"two", "three"} {
		_, err := client.CoreV1().Pods("velero").Create(t.Context(), pod(name), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	select {
	case <-snapshots:
		require.Fail(t, "drawn before its time")
	case <-time.After(50 * time.Millisecond):
	}
	clk.Step(time.Second)
	snapshot := receive(t, snapshots)
	for len(snapshot.Report().Nodes) < 3 { // the last event may arrive later
		waitForClock(t, clk)
		clk.Step(time.Second)
		snapshot = receive(t, snapshots)
	}
	require.NoError(t, end())
}

func TestAnUnchangedReportIsRedrawnAtTheMaxInterval(t *testing.T) {
	client, clk := fake.NewClientset(), clocktesting.NewFakeClock(time.Now())
	snapshots, end := follow(t, client, clk)
	before := receive(t, snapshots)
	waitForClock(t, clk)
	clk.Step(time.Minute)
	require.Equal(t, time.Minute, receive(t, snapshots).Report().Time.Sub(before.Report().Time))
	require.NoError(t, end())
}

func forbid(client *fake.Clientset, resource string) {
	refuse := func(action clienttesting.Action) error {
		return apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("not you"))
	}
	client.PrependReactor("list", resource, func(action clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refuse(action) })
}

func TestUnreadableResourcesAreNamedAndTheRestIsDrawn(t *testing.T) {
	client := fake.NewClientset(pod("one"))
	forbid(client, "configmaps")
	snapshots, end := follow(t, client, clock.RealClock{})
	report := receive(t, snapshots).Report()
	require.Len(t, report.Nodes, 1)
	require.Len(t, report.Unreadable, 1)
	require.Equal(t, view.ResourceConfigMaps, report.Unreadable[0].Resource)
	require.NoError(t, end())
}

func TestFollowFailsIfNothingIsReadable(t *testing.T) {
	client := fake.NewClientset()
	forbid(client, "*")
	options := WatchOptions{Namespace: "velero", Clock: clock.RealClock{}, MinInterval: time.Second, MaxInterval: time.Minute, SyncTimeout: 5 * time.Second}
	err := (&Clients{kube: client}).follow(t.Context(), options, podsOf(client), func(*diagnose.Snapshot) error { return nil })
	require.ErrorContains(t, err, "list pods: ")
}

func TestListNamesUnreadableResources(t *testing.T) {
	client := fake.NewClientset(pod("one"))
	forbid(client, "configmaps")
	objects, unreadable, err := list(t.Context(), podsOf(client))
	require.NoError(t, err)
	require.Len(t, objects, 1)
	require.Equal(t, []view.Unreadable{{Resource: view.ResourceConfigMaps, Namespace: "velero", Message: "not allowed to list or watch them; docs/command-line.md lists the required RBAC rules"}}, unreadable)
	forbid(client, "pods")
	_, unreadable, err = list(t.Context(), podsOf(client))
	require.ErrorContains(t, err, "list pods: ")
	require.Len(t, unreadable, 2)
}

func TestAFailedDrawEndsFollow(t *testing.T) {
	options := WatchOptions{Namespace: "velero", Clock: clock.RealClock{}, MinInterval: time.Second, MaxInterval: time.Minute, SyncTimeout: 5 * time.Second}
	broken := errors.New("broken pipe")
	client := fake.NewClientset()
	err := (&Clients{kube: client}).follow(t.Context(), options, podsOf(client), func(*diagnose.Snapshot) error { return broken })
	require.ErrorIs(t, err, broken)
}

func TestDependenciesAreFollowed(t *testing.T) {
	restore := &velerov1.PodVolumeRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "restore"},
		Spec:       velerov1.PodVolumeRestoreSpec{UploaderType: "kopia", Pod: corev1.ObjectReference{Namespace: "app", Name: "web"}},
	}
	snapshot := diagnose.Gather("velero", time.Now(), []runtime.Object{restore}, nil)
	require.Equal(t, []diagnose.Dependency{{Resource: view.ResourcePods, Namespace: "app"}}, snapshot.Dependencies())
	client := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "web"}})
	source := (&Clients{kube: client}).dependency(snapshot.Dependencies()[0])
	objects, err := source.list(t.Context())
	require.NoError(t, err)
	require.Len(t, objects, 1)
}
