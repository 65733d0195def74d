package informers

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
)

// recorder records the objects with which a handler was called, as name@what.
type recorder chan string

func (r recorder) record(pod *corev1.Pod) { r <- pod.Name + "@" + pod.Labels["is"] }

// take returns the calls since its last call, ordered by name.
func (r recorder) take() (calls []string) {
	for len(r) > 0 {
		calls = append(calls, <-r)
	}
	slices.Sort(calls)
	return calls
}

func TestHandlersAreCalledForAddUpdateAndDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newFeed(pod("a", labelled("first")), pod("b")), make(recorder, 9)
		informer := podInformer(t, f)
		running(t, informer)
		checker, err := informer.AddHandler(w.record)
		require.NoError(t, err)
		<-checker.Done()
		require.Equal(t, []string{"a@first", "b@"}, w.take(), "the checker of a late handler is done when it has handled all objects")

		f.set(pod("a", labelled("changed")))
		synctest.Wait()
		require.Equal(t, []string{"a@changed"}, w.take(), "as it is now")
		f.remove(pod("a"))
		synctest.Wait()
		require.Equal(t, []string{"a@changed"}, w.take())
		require.Len(t, informer.List(), 1)
	})
}

func TestHandlersAreCalledForDeletionsMissedByTheWatchOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newFeed(pod("goes"), pod("stays")), make(recorder, 9)
		informer := podInformer(t, f)
		_, err := informer.AddHandler(w.record)
		require.NoError(t, err)
		running(t, informer)
		synctest.Wait()
		require.Equal(t, []string{"goes@", "stays@"}, w.take())

		f.lose(pod("goes")) // the rest is listed again: goes is a tombstone, stays keeps its version
		<-time.NewTimer(time.Minute).C
		synctest.Wait()
		require.Equal(t, []string{"goes@"}, w.take())
		require.Len(t, informer.List(), 1)
	})
}

func TestManagedFieldsAreDroppedUnlessTheyShowAnUnknownField(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			managed := func(name, field string) *corev1.Pod {
				return pod(name, func(pod *corev1.Pod) {
					pod.Spec.Hostname = "host"
					pod.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:` + field + `":{}}}`)}}
				})
			}
			informer, err := New("pods", newFeed(managed("a", "zeal"), managed("b", "nodeName")), &corev1.Pod{}, Scope{UnknownFields: keeps}, trimPod)
			require.NoError(t, err)
			running(t, informer)
			for name, kept := range map[string]bool{"velero/a": keeps, "velero/b": false} {
				found, exists := informer.Get(name)
				require.True(t, exists)
				require.Equal(t, kept, len(found.ManagedFields) > 0, name)
				require.Empty(t, found.Spec.Hostname, "trimmed")
			}
		})
	}
}

func TestEnqueueOwnerEnqueuesTheControllerOfThatKind(t *testing.T) {
	owned := func(kind string, controller bool) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "owner", Controller: &controller}}
		}
	}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		keys []string
	}{
		"its controller":                 {pod: pod("a", owned("PodVolumeBackup", true)), keys: []string{"velero/owner"}},
		"a controller of another kind":   {pod: pod("a", owned("Job", true))},
		"an owner that does not control": {pod: pod("a", owned("PodVolumeBackup", false))},
		"a label that names a transfer":  {pod: pod("a", func(p *corev1.Pod) { p.Labels = map[string]string{velerov1.PVBLabel: "owner"} })},
		"a pod without an owner":         {pod: pod("a")},
	} {
		var keys []string
		EnqueueOwner[*corev1.Pod]("PodVolumeBackup", func(key string) { keys = append(keys, key) })(test.pod)
		require.Equal(t, test.keys, keys, name)
	}
}

// feed is an API server for pods: it streams the existing ones and later changes.
type feed struct {
	lock    sync.Mutex
	version int
	pods    map[string]*corev1.Pod // by key
	watches []*watch.RaceFreeFakeWatcher
}

func newFeed(pods ...*corev1.Pod) *feed {
	f := &feed{pods: map[string]*corev1.Pod{}}
	for _, pod := range pods {
		f.set(pod)
	}
	return f
}

// set creates or updates a pod with a new version.
func (f *feed) set(pod *corev1.Pod) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.version++
	pod = pod.DeepCopy()
	pod.ResourceVersion = strconv.Itoa(f.version)
	kind := watch.Added
	if f.pods[Key(pod)] != nil {
		kind = watch.Modified
	}
	f.pods[Key(pod)] = pod
	f.send(kind, pod)
}

func (f *feed) remove(pod *corev1.Pod) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.version++
	deleted := f.pods[Key(pod)].DeepCopy()
	deleted.ResourceVersion = strconv.Itoa(f.version)
	delete(f.pods, Key(pod))
	f.send(watch.Deleted, deleted)
}

// lose removes a pod without an event: the watch ends before.
func (f *feed) lose(pod *corev1.Pod) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.version++
	delete(f.pods, Key(pod))
	for _, w := range f.watches {
		w.Error(&metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone})
		w.Stop()
	}
}

func (f *feed) send(kind watch.EventType, pod *corev1.Pod) {
	for _, w := range f.watches {
		w.Action(kind, pod.DeepCopy())
	}
}

// List is not called: Watch sends the existing pods.
func (f *feed) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	panic("the informer lists pods")
}

// Watch starts with the existing pods and a bookmark if requested.
func (f *feed) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	w := watch.NewRaceFreeFake()
	context.AfterFunc(ctx, w.Stop)
	f.watches = append(slices.DeleteFunc(f.watches, (*watch.RaceFreeFakeWatcher).IsStopped), w)
	if opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		for _, pod := range f.pods {
			w.Add(pod.DeepCopy())
		}
		w.Action(watch.Bookmark, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: strconv.Itoa(f.version),
			Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	return w, nil
}

// listing is an API server that does not stream lists. The reflector then sends a list.
type listing struct {
	*feed
	versions []string // of the lists
}

func (l *listing) List(_ context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
	l.versions = append(l.versions, opts.ResourceVersion)
	return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
}

func (l *listing) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	if opts.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
	}
	return l.feed.Watch(ctx, opts)
}

func TestTheFirstListIsFromTheCacheOfTheServerUnlessItMustBeConsistent(t *testing.T) {
	for version, scope := range map[string]Scope{"0": {}, "": {Consistent: true}} {
		synctest.Test(t, func(t *testing.T) {
			server := &listing{feed: newFeed()}
			informer, err := New("pods", server, &corev1.Pod{}, scope, trimPod)
			require.NoError(t, err)
			informer.fail(errors.New("timeout"))
			running(t, informer)
			_, err = ListWatch(server, scope).ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "5"})
			require.NoError(t, err)
			require.Equal(t, []string{version, "5"}, server.versions, "a later list may be of any version that is not older")
			synctest.Wait()
			require.Nil(t, informer.failure.Load(), "a watch continues the list")
		})
	}
}

func pod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	created := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name}}
	for _, change := range changes {
		change(created)
	}
	return created
}

func labelled(value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Labels = map[string]string{"is": value} }
}

func atVersion(version string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.ResourceVersion = version }
}

// moverIs returns the label of the mover velero/a.
func moverIs(caches *Caches) string {
	if found := caches.Mover("velero/a"); found != nil {
		return found.Labels["is"]
	}
	return "absent"
}

// podInformer returns an informer on a feed.
func podInformer(t *testing.T, f *feed) *Informer[*corev1.Pod] {
	t.Helper()
	informer, err := New("pods", f, &corev1.Pod{}, Scope{}, trimPod)
	require.NoError(t, err)
	return informer
}

// running runs informers until the test ends, and waits until they have synced.
func running(t *testing.T, informers ...*Informer[*corev1.Pod]) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, informer := range informers {
		all.Go(func() { informer.run(ctx) })
	}
	t.Cleanup(func() { stop(); all.Wait() })
	for _, informer := range informers {
		<-informer.synced().Done()
	}
}

// forbidding is an API server that forbids all requests while denied, or all but lists.
type forbidding struct {
	*feed
	denied, lists atomic.Bool
}

func (f *forbidding) List(context.Context, metav1.ListOptions) (*corev1.PodList, error) {
	if f.lists.Load() {
		return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
	}
	return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil)
}

func (f *forbidding) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil)
	switch {
	case !f.denied.Load():
		return f.feed.Watch(ctx, opts)
	case opts.SendInitialEvents == nil:
		return nil, denied
	}
	w := watch.NewRaceFreeFake() // it opens, then fails
	w.Error(&denied.ErrStatus)
	return w, nil
}

func TestACacheWhoseRequestsFailIsReportedOnceInEachOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &forbidding{feed: newFeed(pod("a"))}
		var g group
		informer := add(&g, "pods", server, &corev1.Pod{}, Scope{}, trimPod)
		reported := make(chan string, 9)
		g.Watch(Watchdog{Clock: clock.RealClock{}, After: 2 * time.Minute, Report: func(failing string) { reported <- failing }})
		informer.denied = func(error) {} // in a bubble, client-go's handler would wait for the time of the machine
		server.denied.Store(true)
		go informer.run(t.Context())
		<-time.After(10 * time.Minute)
		require.Len(t, reported, 1, "it has not synced yet")
		<-reported
		server.denied.Store(false)
		<-time.After(2 * time.Minute)
		for i, request := range []string{"failed to list *v1.Pod: ", ""} {
			server.lists.Store(i == 1)                                       // then a watch fails
			informer.fail(&url.Error{Op: "Get", Err: errors.New("timeout")}) // nobody reaches the API server
			<-time.After(10 * time.Minute)
			informer.fail(&url.Error{Op: "Get", Err: errors.New("timeout")})
			server.denied.Store(true)
			server.lose(pod("a"))
			<-time.After(time.Minute)
			require.Empty(t, reported, "the requests may be allowed soon")
			<-time.After(10 * time.Minute)
			require.Len(t, reported, 1)
			require.Equal(t, "pods: "+request+"pods is forbidden: <nil>", <-reported)
			require.True(t, informer.stale())
			server.denied.Store(false)
			server.set(pod("a"))
			<-time.After(2 * time.Minute)
			require.Equal(t, []any{1, false}, []any{len(informer.List()), informer.stale()})
		}
	})
}

func TestWatchConfigMapReadsTheNewestVersionOnceForSeveralChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, w, broken := fake.NewClientset(), watch.NewRaceFreeFake(), apierrors.NewInternalError(errors.New("no leader"))
		client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, broken })
		requests := 0
		client.PrependWatchReactor("configmaps", func(action clienttesting.Action) (bool, watch.Interface, error) {
			require.Equal(t, "metadata.name=config", action.(clienttesting.WatchAction).GetWatchRestrictions().Fields.String())
			if requests++; requests == 1 {
				return true, nil, broken
			}
			return true, w, nil
		})
		config := func(version string) *corev1.ConfigMap {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "config", ResourceVersion: version}}
		}
		ctx, stop := context.WithCancel(t.Context())
		ended, read, name := make(chan error), make(chan *corev1.ConfigMap), types.NamespacedName{Namespace: "velero", Name: "config"}
		go func() { ended <- WatchConfigMap(ctx, client, name, func(found *corev1.ConfigMap) { read <- found }) }()
		first := config("1")
		first.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		w.Action(watch.Bookmark, first)
		require.Nil(t, <-read, "there is none")
		w.Add(config("2"))
		synctest.Wait()
		for _, version := range []string{"3", "4", "5"} { // while version 2 is handled
			w.Modify(config(version))
			synctest.Wait()
		}
		require.Equal(t, config("2"), <-read)
		require.Equal(t, config("5"), <-read)
		stop()
		require.NoError(t, <-ended, "the last version is not read again")
	})
}
