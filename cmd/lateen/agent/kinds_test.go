package agent

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// stored implements resources with client-go's own store.
type stored[T transfer.Object] struct{ cache.Indexer }

func (s stored[T]) typed(objects []any) []T {
	var all []T
	for _, object := range objects {
		all = append(all, object.(T))
	}
	return all
}

func (s stored[T]) Get(key string) (found T, exists bool) {
	object, exists, err := s.GetByKey(key)
	if err != nil || !exists {
		return found, false
	}
	return object.(T), true
}

func (s stored[T]) List() []T { return s.typed(s.Indexer.List()) }

func (s stored[T]) ByIndex(index, word string) []T {
	objects, err := s.Indexer.ByIndex(index, word)
	if err != nil {
		panic(err)
	}
	return s.typed(objects)
}

func (s stored[T]) Index(name string, of func(T) []string) error {
	return s.AddIndexers(cache.Indexers{name: func(object any) ([]string, error) { return of(object.(T)), nil }})
}

func (s stored[T]) AddHandler(func(T)) (cache.DoneChecker, error) { return cached{}, nil }

// steps records the reconciled keys.
type steps struct {
	lock sync.Mutex
	keys []string
}

func (s *steps) reconcile(_ context.Context, key string) (time.Duration, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.keys = append(s.keys, key)
	return 0, nil
}

// taken waits until the controller is idle. It returns the keys that were reconciled since the last call.
func (s *steps) taken() []string {
	synctest.Wait()
	s.lock.Lock()
	defer s.lock.Unlock()
	keys := s.keys
	s.keys = nil
	return keys
}

func TestANodeEventEnqueuesOnlyUnsettledTransfersOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := stored[*velerov1.PodVolumeRestore]{cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}
		taken := &steps{}
		l := &kindController[*velerov1.PodVolumeRestore]{
			transfers:  &reconcile.TransferReconciler[*velerov1.PodVolumeRestore]{Kind: transfer.PodVolumeRestore()},
			controller: reconcile.NewController(reconcile.Options{Name: "restores", Workers: 1, Clock: clock.RealClock{}}, taken.reconcile),
			resources:  all,
		}
		require.NoError(t, l.index())
		add := func(name, node string, phase velerov1.PodVolumeRestorePhase, finalizers ...string) {
			require.NoError(t, all.Add(&velerov1.PodVolumeRestore{
				ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name, Finalizers: finalizers},
				Spec:       velerov1.PodVolumeRestoreSpec{UploaderType: "kopia"},
				Status:     velerov1.PodVolumeRestoreStatus{Phase: phase, Node: node},
			}))
		}
		for i := range 10_000 {
			add(fmt.Sprint("done-", i), fmt.Sprint("n", i%3), velerov1.PodVolumeRestorePhaseCompleted)
		}
		add("works", "n1", velerov1.PodVolumeRestorePhaseInProgress)
		add("cleans-up", "n1", velerov1.PodVolumeRestorePhaseFailed, api.FinalizerPodVolume)
		add("waits", "", "")
		add("elsewhere", "n2", velerov1.PodVolumeRestorePhaseInProgress)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { l.run(ctx, nil) })
		l.enqueueNode("n1")
		require.ElementsMatch(t, []string{"velero/works", "velero/cleans-up", "velero/waits"}, taken.taken())
		l.enqueueUnsettled()
		require.ElementsMatch(t, []string{"velero/works", "velero/cleans-up", "velero/waits", "velero/elsewhere"}, taken.taken())
		stop()
		running.Wait()
	})
}
