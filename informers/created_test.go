package informers

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestACreatedMoverIsReturnedUntilTheCacheIsNewer(t *testing.T) {
	tests := map[string]struct {
		then func(f *feed) // at version 5; the pod was created at version 7
		is   string
	}{
		"while it receives no event":     {then: func(*feed) {}, is: "made"},
		"while it receives older events": {then: func(f *feed) { f.set(pod("b")) }, is: "made"},
		"until it has the pod":           {then: func(f *feed) { f.version = 6; f.set(pod("a", ofUID("1"), labelled("running"))) }, is: "running"},
		"until the pod is deleted again": {is: "absent", then: func(f *feed) {
			f.version = 6
			f.set(pod("a", ofUID("1")))
			f.remove(pod("a"))
		}},
		"until it receives a newer event": {then: func(f *feed) { f.version = 9; f.set(pod("b")) }, is: "absent"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFeed(pod("b"))
				f.version = 5
				caches := &Caches{Movers: podInformer(t, f), LocalPods: podInformer(t, newFeed())}
				_, err := caches.Movers.AddHandler(caches.DropCreated(func(*corev1.Pod) {}))
				require.NoError(t, err)
				running(t, caches.Movers, caches.LocalPods)
				require.Nil(t, caches.Mover("velero/a"))
				caches.Created(pod("a", ofUID("1"), labelled("made"), atVersion("7")))
				test.then(f)
				synctest.Wait()
				require.Equal(t, test.is, moverIs(caches))
			})
		})
	}
}

func TestAMoverDeletedInOneCacheIsNotReturnedFromAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lagging, here := newFeed(), newFeed()
		lagging.version, here.version = 5, 6
		caches := &Caches{Movers: podInformer(t, lagging), LocalPods: podInformer(t, here)}
		var observed []*corev1.Pod
		_, err := caches.LocalPods.AddHandler(caches.DropCreated(func(*corev1.Pod) { observed = append(observed, caches.Mover("velero/a")) }))
		require.NoError(t, err)
		running(t, caches.Movers, caches.LocalPods)
		caches.Created(pod("a", ofUID("1"), atVersion("7")))
		require.NotNil(t, caches.Mover("velero/a"))
		here.set(pod("a", ofUID("1")))
		here.remove(pod("a", ofUID("1")))
		synctest.Wait()
		require.NotEmpty(t, observed)
		require.Nil(t, observed[len(observed)-1], "a reconcile after its deletion finds it")
	})
}
