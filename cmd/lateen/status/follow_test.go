package status

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/deploy"
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

// drawings are the snapshots that a follower draws. The test runs in a bubble, whose time is virtual.
type drawings struct {
	*testing.T
	lock      sync.Mutex
	snapshots []*diagnose.Snapshot
	broken    error // answers each drawing
	ended     chan error
	stop      context.CancelFunc
}

// follow watches a fake cluster until it is stopped.
func follow(t *testing.T, client *fake.Clientset, broken error) *drawings {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	d := &drawings{T: t, broken: broken, ended: make(chan error, 1), stop: stop}
	options := watchOptions{
		Namespace: "velero", Sources: podsOf(client), Clock: clock.RealClock{},
		MinInterval: time.Second, MaxInterval: time.Minute, SyncTimeout: time.Minute,
	}
	go func() {
		d.ended <- (&clients{kube: client}).Follow(ctx, options, func(snapshot *diagnose.Snapshot) error {
			d.lock.Lock()
			defer d.lock.Unlock()
			d.snapshots = append(d.snapshots, snapshot)
			return d.broken
		})
	}()
	synctest.Wait()
	return d
}

// after returns the reports that were drawn until some time has passed.
func (d *drawings) after(passed time.Duration) (reports []view.Report) {
	<-time.NewTimer(passed).C
	synctest.Wait()
	d.lock.Lock()
	defer d.lock.Unlock()
	for _, snapshot := range d.snapshots {
		reports = append(reports, snapshot.Report())
	}
	return reports
}

func (d *drawings) end() {
	d.stop()
	require.NoError(d, <-d.ended)
}

func TestChangesAreDrawnAtMostOncePerIntervalAndAtLeastAtTheMaximum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(pod("one"))
		d := follow(t, client, nil)
		require.Len(t, d.after(0)[0].Nodes, 1)
		for _, name := range []string{"two", "three"} {
			_, err := client.CoreV1().Pods("velero").Create(t.Context(), pod(name), metav1.CreateOptions{})
			require.NoError(t, err)
		}
		require.Len(t, d.after(time.Second-1), 1, "drawn before its time")
		reports := d.after(1)
		require.Len(t, reports, 2)
		require.Len(t, reports[1].Nodes, 3)
		reports = d.after(time.Minute)
		require.Len(t, reports, 3)
		require.Equal(t, time.Minute, reports[2].Time.Sub(reports[1].Time))
		d.end()
	})
}

func forbid(client *fake.Clientset, resource string) {
	refuse := func(action clienttesting.Action) error {
		return apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("not you"))
	}
	client.PrependReactor("list", resource, func(action clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refuse(action) })
}

func TestUnreadableResourcesAreNamedAndTheRestIsDrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(pod("one"))
		forbid(client, "configmaps")
		d := follow(t, client, nil)
		report := d.after(0)[0]
		require.Len(t, report.Nodes, 1)
		require.Len(t, report.Unreadable, 1)
		require.Equal(t, view.ResourceConfigMaps, report.Unreadable[0].Resource)
		d.end()
	})
}

func TestFollowEndsIfNothingIsReadableOrNothingCanBeDrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		broken := errors.New("broken pipe")
		require.ErrorIs(t, <-follow(t, client, broken).ended, broken)
		forbid(client, "*")
		require.ErrorContains(t, <-follow(t, client, nil).ended, "list pods: ")
	})
}

// restores returns a source with one restore to a volume of a pod in namespace app.
func restores() source {
	restore := velerov1.PodVolumeRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "restore"},
		Spec:       velerov1.PodVolumeRestoreSpec{UploaderType: "kopia", Pod: corev1.ObjectReference{Namespace: "app", Name: "web"}},
	}
	return source{api.PodVolumeRestore().CRD(), "velero", &velerov1.PodVolumeRestore{}, &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return &velerov1.PodVolumeRestoreList{Items: []velerov1.PodVolumeRestore{restore}}, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
	}}
}

func TestDependenciesAreReadUnlessTheyDoNotAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		hangs bool
		want  string
	}{
		"answered": {want: "pod app/web is not scheduled yet"},
		"hanging":  {hangs: true, want: "no response from the API server in time"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, answer := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "web"}}), make(chan struct{})
				client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
					if test.hangs && action.GetNamespace() == "app" {
						<-answer
					}
					return false, nil, nil
				})
				defer close(answer)
				held := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: deploy.CoordinatorLease}, Spec: coordinationv1.LeaseSpec{
					HolderIdentity: new("node-1_"), RenewTime: &metav1.MicroTime{Time: time.Now()}, LeaseDurationSeconds: new(int32(15)),
				}})
				sources := append(podsOf(fake.NewClientset()), restores(),
					from(view.ResourceLeases, "velero", &coordinationv1.Lease{}, held.CoordinationV1().Leases("velero"), metav1.ListOptions{}))
				how := watchOptions{Namespace: "velero", Sources: sources, Clock: clock.RealClock{}, SyncTimeout: time.Minute}
				snapshot, err := (&clients{kube: client}).Read(t.Context(), how, diagnose.Reference{})
				require.NoError(t, err)
				report := snapshot.Report()
				got := report.Transfers[0].WaitsFor.Message
				if test.hangs {
					got = report.Unreadable[0].Message
				}
				require.Equal(t, test.want, got)
			})
		})
	}
}

func TestEveryKindIsRead(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, velerov1.AddToScheme(scheme))
	require.NoError(t, velerov2alpha1.AddToScheme(scheme))
	clients, err := newClients(&rest.Config{Host: "http://127.0.0.1:1"})
	require.NoError(t, err)
	examples := map[string]runtime.Object{}
	for _, source := range clients.sources("velero") {
		examples[source.resource] = source.example
	}
	for _, kind := range api.Kinds() {
		object, err := scheme.New(kind.GVK)
		require.NoError(t, err)
		require.IsType(t, object, examples[kind.CRD()], "no source reads %s", kind.CRD())
	}
}

func TestAHangingResourceIsOmittedAndAnInterruptedReadIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hanging := restores()
		hanging.lists.ListWithContextFunc = func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		client := fake.NewClientset(pod("one"))
		how := watchOptions{Namespace: "velero", Sources: append(podsOf(client), hanging), Clock: clock.RealClock{}, SyncTimeout: time.Minute}
		snapshot, err := (&clients{kube: client}).Read(t.Context(), how, diagnose.Reference{})
		require.NoError(t, err)
		report := snapshot.Report()
		require.Len(t, report.Nodes, 1)
		require.Len(t, report.Unreadable, 1)
		require.Equal(t, "no response from the API server in time", report.Unreadable[0].Message)

		ctx, interrupt := context.WithTimeout(t.Context(), time.Second)
		defer interrupt()
		_, err = (&clients{kube: client}).Read(ctx, how, diagnose.Reference{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}
