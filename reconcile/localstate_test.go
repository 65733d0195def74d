package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer"
)

// A rebind deletes the restore claim while the cache shows the mover of an earlier attempt, which is deleted. When the cache
// shows the mover that ran, the rebind deletes that too: the claim waits for it.
func TestARebindGoesOnWithAMoverThatItsCacheShowsLate(t *testing.T) {
	var local localState
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "claim"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod"}}
	both := exposer.Existing{Pod: pod, Claims: []*corev1.PersistentVolumeClaim{claim}}
	require.False(t, local.isDeleting("d1", both))
	local.rebinds("d1", exposer.Existing{Claims: both.Claims}, "")
	require.True(t, local.isDeleting("d1", exposer.Existing{Claims: both.Claims}))
	require.False(t, local.isDeleting("d1", both))
	local.rebinds("d1", both, "")
	require.True(t, local.isDeleting("d1", both))
	require.True(t, local.isDeleting("d1", exposer.Existing{Pod: pod}))
	require.False(t, local.isDeleting("d1", exposer.Existing{}))
	local.markDeleted("d1", exposer.Existing{}, true)
	mover, claims := local.undeleted("d1", []string{"c", "other"})
	require.False(t, mover, "its deletion is known")
	require.Equal(t, []string{"other"}, claims)
	local.markDeleted("d2", both, false)
	mover, claims = local.undeleted("d2", []string{"c"})
	require.True(t, mover, "no event reports the deletion of what no cache has")
	require.Equal(t, []string{"c"}, claims)
}
