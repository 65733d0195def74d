package informers

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// labelsOf returns the labels of pods.
func labelsOf(pods []*corev1.Pod) (all []string) {
	for _, pod := range pods {
		all = append(all, pod.Labels["is"])
	}
	return all
}

func TestAnOwnWriteIsReadUntilTheCacheHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(pod("a", ofUID("1"), labelled("cached")), pod("b", labelled("other")))
		informer := podInformer(t, f)
		running(t, informer)
		read := func() string {
			synctest.Wait()
			found, exists := informer.Get("velero/a")
			require.True(t, exists)
			require.Equal(t, []string{found.Labels["is"]}, labelsOf(informer.ByIndex(ByUID, "1")))
			require.ElementsMatch(t, []string{found.Labels["is"], "other"}, labelsOf(informer.List()))
			return found.Labels["is"]
		}
		require.Equal(t, "cached", read())
		informer.Record(pod("a", ofUID("1"), labelled("written"), atVersion("7")))
		require.Equal(t, "written", read())
		f.set(pod("a", ofUID("1"), labelled("before the write")))
		require.Equal(t, "written", read())
		f.version = 8
		f.set(pod("b", labelled("other")))
		require.Equal(t, "written", read(), "another one has a later version")
		f.version = 7
		f.set(pod("a", ofUID("1"), labelled("after the write")))
		require.Equal(t, "after the write", read())
		f.version = 1
		f.set(pod("a", ofUID("1"), labelled("restored")))
		require.Equal(t, "restored", read(), "the control plane was restored from a backup")
	})
}

func TestAnotherCacheDropsOnlyAnEarlierWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		informer := podInformer(t, newFeed(pod("b")))
		running(t, informer)
		synctest.Wait()
		informer.Record(pod("a", ofUID("1"), atVersion("7")))
		informer.drop(pod("a", ofUID("1"), atVersion("6")))
		informer.drop(pod("a", ofUID("2"), atVersion("8")))
		require.Len(t, informer.written, 1)
		informer.drop(pod("a", ofUID("1"), atVersion("7")))
		require.Empty(t, informer.written)
	})
}

func TestACreatedMoverIsReturnedAndKeptUntilTheCacheIsNewer(t *testing.T) {
	tests := map[string]struct {
		then func(f *feed) // at version 5; the pod was created at version 7
		is   string
	}{
		"while it receives no event":      {then: func(*feed) {}, is: "made"},
		"while it receives older events":  {then: func(f *feed) { f.set(pod("b")) }, is: "made"},
		"until it has the pod":            {then: func(f *feed) { f.version = 6; f.set(pod("a", ofUID("1"), labelled("running"))) }, is: "running"},
		"until the pod is deleted again":  {then: func(f *feed) { f.version = 6; f.set(pod("a", ofUID("1"))); f.remove(pod("a")) }, is: "absent"},
		"until it receives a newer event": {then: func(f *feed) { f.version = 9; f.set(pod("b")) }, is: "absent"},
	}
	for name, test := range tests {
		synctest.Test(t, func(t *testing.T) {
			f := newFeed(pod("b"))
			f.version = 5
			caches := &Caches{Movers: podInformer(t, f), LocalPods: podInformer(t, newFeed())}
			running(t, caches.Movers, caches.LocalPods)
			require.Nil(t, caches.Mover("velero/a"))
			caches.Movers.Record(pod("a", ofUID("1"), labelled("made"), atVersion("7")))
			test.then(f)
			synctest.Wait()
			caches.Movers.Record(pod("another", atVersion("20"))) // which drops what the cache has
			_, kept := caches.Movers.written["velero/a"]
			require.Equal(t, test.is == "made", kept, name)
			require.Equal(t, kept, caches.Recorded("velero/a"), name)
			require.Equal(t, test.is, moverIs(caches), name)
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
		caches.Movers.Record(pod("a", ofUID("1"), atVersion("7")))
		require.NotNil(t, caches.Mover("velero/a"))
		here.set(pod("a", ofUID("1")))
		here.remove(pod("a", ofUID("1")))
		synctest.Wait()
		require.NotEmpty(t, observed)
		require.Nil(t, observed[len(observed)-1], "a reconcile after its deletion finds it")
	})
}

func ofUID(uid types.UID) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.UID = uid } }

func TestADeletedObjectIsReadAsDeletingUntilTheCacheHasIt(t *testing.T) {
	deleting := func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{} }
	tests := map[string]struct {
		then func(f *feed)
		show bool // a pod exists
		ends bool // and it is deleting
		kept bool // the deletion is not dropped
	}{
		"while it receives no event":                       {then: func(*feed) {}, show: true, ends: true, kept: true},
		"when it is updated meanwhile":                     {then: func(f *feed) { f.set(pod("a", ofUID("1"), labelled("x"))) }, show: true, ends: true, kept: true},
		"when it waits for its finalizers":                 {then: func(f *feed) { f.set(pod("a", ofUID("1"), deleting)) }, show: true, ends: true},
		"when it is deleted":                               {then: func(f *feed) { f.remove(pod("a")) }},
		"and not a recreated pod of its name":              {then: func(f *feed) { f.remove(pod("a")); f.set(pod("a", ofUID("2"))) }, show: true},
		"and not a recreated pod without a deletion event": {then: func(f *feed) { f.set(pod("a", ofUID("2"))) }, show: true},
	}
	for name, test := range tests {
		synctest.Test(t, func(t *testing.T) {
			f := newFeed(pod("a", ofUID("1")))
			informer := podInformer(t, f)
			running(t, informer)
			shown, _ := informer.Get("velero/a")
			require.Nil(t, shown.DeletionTimestamp)
			informer.RecordDeletion("velero/a", "1")
			test.then(f)
			synctest.Wait()
			informer.RecordDeletion("velero/deleted-before", "9") // which drops what the cache has
			require.Equal(t, test.kept, len(informer.deleted) > 0, name)
			shown, exists := informer.Get("velero/a")
			require.Equal(t, test.show, exists, name)
			if test.show {
				require.Equal(t, test.ends, shown.DeletionTimestamp != nil, name)
			}
		})
	}
}

func TestAnObjectThatWasWrittenThenDeletedIsReadAsDeletingIfTheCacheHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		informer := podInformer(t, newFeed(pod("cached", ofUID("1"))))
		running(t, informer)
		for i, name := range []string{"cached", "created"} {
			informer.Record(pod(name, ofUID("1"), labelled("written"), atVersion("7")))
			found, _ := informer.Get("velero/" + name)
			require.Equal(t, "written", found.Labels["is"])
			require.Len(t, informer.List(), i+1)
			informer.RecordDeletion("velero/"+name, "1")
		}
		found := informer.List()
		require.Equal(t, []string{"written"}, labelsOf(found))
		require.NotNil(t, found[0].DeletionTimestamp)
	})
}
