package informers

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func ofUID(uid types.UID) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.UID = uid } }

func ending(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.Now()) }

func TestADeletedPodIsShownAsDeletingUntilTheCacheObservesIt(t *testing.T) {
	tests := map[string]struct {
		then func(f *feed)
		show bool // a pod exists
		ends bool // and it is deleting
	}{
		"while it receives no event":                       {then: func(*feed) {}, show: true, ends: true},
		"when it is updated meanwhile":                     {then: func(f *feed) { f.set(pod("a", ofUID("1"), labelled("x"))) }, show: true, ends: true},
		"when it waits for its finalizers":                 {then: func(f *feed) { f.set(pod("a", ofUID("1"), ending)) }, show: true, ends: true},
		"when it is deleted":                               {then: func(f *feed) { f.remove(pod("a")) }},
		"and not a recreated pod of its name":              {then: func(f *feed) { f.remove(pod("a")); f.set(pod("a", ofUID("2"))) }, show: true},
		"and not a recreated pod without a deletion event": {then: func(f *feed) { f.set(pod("a", ofUID("2"))) }, show: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFeed(pod("a", ofUID("1")))
				informer := podInformer(t, f)
				d := newDeletions(informer)
				checker, err := informer.AddHandler(func(pod *corev1.Pod) { d.drop(Key(pod), pod.UID) })
				require.NoError(t, err)
				running(t, informer)
				done(t, checker)
				require.Nil(t, d.get("velero/a").DeletionTimestamp)
				d.note("velero/a", "1")
				test.then(f)
				synctest.Wait()
				shown := d.get("velero/a")
				require.Equal(t, test.show, shown != nil)
				if test.show {
					require.Equal(t, test.ends, shown.DeletionTimestamp != nil)
				}
			})
		})
	}
}

func TestRecordedDeletionsAreDroppedWithTheObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(pod("a", ofUID("1")))
		informer := podInformer(t, f)
		d := newDeletions(informer)
		_, err := informer.AddHandler(func(pod *corev1.Pod) { d.drop(Key(pod), pod.UID) })
		require.NoError(t, err)
		running(t, informer)
		d.note("velero/gone-before", "9")
		d.note("velero/a", "1")
		require.Len(t, d.uids, 1)
		f.remove(pod("a"))
		synctest.Wait()
		require.Empty(t, d.uids)
	})
}
