package informers

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// recorder records the objects with which a handler was called, as name@what.
type recorder struct {
	lock  sync.Mutex
	calls []string
}

func (r *recorder) record(pod *corev1.Pod) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.calls = append(r.calls, pod.Name+"@"+pod.Labels["is"])
}

// take returns the calls since its last call, ordered by name.
func (r *recorder) take() []string {
	r.lock.Lock()
	defer r.lock.Unlock()
	observed := r.calls
	r.calls = nil
	slices.Sort(observed)
	return observed
}

func TestHandlersAreCalledForAddUpdateAndDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newFeed(pod("a", labelled("first")), pod("b")), &recorder{}
		informer := podInformer(t, f)
		running(t, informer)
		checker, err := informer.AddHandler(w.record)
		require.NoError(t, err)
		done(t, checker)
		require.Equal(t, []string{"a@first", "b@"}, w.take(), "the checker of a late handler is done when it has handled all objects")

		f.set(pod("a", labelled("changed")))
		synctest.Wait()
		require.Equal(t, []string{"a@changed"}, w.take(), "as it is now")
		f.remove(pod("a"))
		synctest.Wait()
		require.Equal(t, []string{"a@changed"}, w.take())
		_, exists := informer.Get("velero/a")
		require.False(t, exists)
	})
}

func TestHandlersAreCalledForDeletionsMissedByTheWatchOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newFeed(pod("goes"), pod("stays")), &recorder{}
		informer := podInformer(t, f)
		_, err := informer.AddHandler(w.record)
		require.NoError(t, err)
		running(t, informer)
		synctest.Wait()
		require.Equal(t, []string{"goes@", "stays@"}, w.take())

		f.lose(pod("goes")) // the rest is listed again: goes is a tombstone, stays keeps its version
		requeue := time.NewTimer(time.Minute)
		<-requeue.C
		synctest.Wait()
		require.Equal(t, []string{"goes@"}, w.take())
		require.Len(t, informer.List(), 1)
	})
}

func TestManagedFieldsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		managed := pod("a", func(pod *corev1.Pod) { pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}} })
		informer := podInformer(t, newFeed(managed))
		running(t, informer)
		kept, exists := informer.Get("velero/a")
		require.True(t, exists)
		require.Empty(t, kept.ManagedFields)
	})
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
		t.Run(name, func(t *testing.T) {
			var keys []string
			EnqueueOwner[*corev1.Pod]("PodVolumeBackup", func(key string) { keys = append(keys, key) })(test.pod)
			require.Equal(t, test.keys, keys)
		})
	}
}
