package writes

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func pod(uid types.UID, resourceVersion string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, ResourceVersion: resourceVersion}}
}

func TestNewestIsTheLocalWriteUntilTheCacheHasIt(t *testing.T) {
	var overlay Overlay[*corev1.Pod]
	cached, written, later := pod("a", "5"), pod("a", "7"), pod("a", "8")
	require.Same(t, cached, overlay.Newest("key", cached))
	overlay.Record("key", written)
	require.Same(t, written, overlay.Newest("key", cached), "the cache is older")
	require.Same(t, later, overlay.Newest("key", later), "the cache is newer")
	require.Same(t, cached, overlay.Newest("key", cached), "the control plane was restored from a backup")
}

func TestNewestIsNoWriteOfAnotherObject(t *testing.T) {
	var overlay Overlay[*corev1.Pod]
	overlay.Record("key", pod("a", "9"))
	require.True(t, overlay.IsRecreated("key", "b"))
	require.False(t, overlay.IsRecreated("key", "a"))
	require.False(t, overlay.IsRecreated("other", "b"))
	next := pod("b", "3")
	require.Same(t, next, overlay.Newest("key", next))
	require.False(t, overlay.IsRecreated("key", "b"))
}

func TestForgottenObjectIsUnknown(t *testing.T) {
	var overlay Overlay[*corev1.Pod]
	written := pod("a", "9")
	overlay.Record("key", written)
	last, known := overlay.Forget("key")
	require.True(t, known)
	require.Same(t, written, last)
	_, known = overlay.Forget("key")
	require.False(t, known)
	require.False(t, overlay.IsRecreated("key", "b"))
}

func TestAllHasOwnWritesThatTheCacheLacks(t *testing.T) {
	var overlay Overlay[*corev1.Pod]
	uid := func(pod *corev1.Pod) string { return string(pod.UID) }
	cached, written, created := pod("a", "5"), pod("a", "7"), pod("b", "6")
	overlay.Record("a", written)
	overlay.Record("b", created)
	require.Equal(t, []*corev1.Pod{written, created}, overlay.All([]*corev1.Pod{cached}, uid))
	later := pod("b", "8")
	require.Equal(t, []*corev1.Pod{written, later}, overlay.All([]*corev1.Pod{cached, later}, uid))
	require.Equal(t, []*corev1.Pod{written}, overlay.All(nil, uid), "b was deleted")
	_, known := overlay.Forget("b")
	require.False(t, known)
}
