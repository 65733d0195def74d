package capacity

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

func TestNodesHaveSeparateSlots(t *testing.T) {
	nodeSlots := NewNodeSlots("n1", 2, 1)
	take := func(node string, uid types.UID, age int) bool {
		return nodeSlots.TryAcquire(node, uid, created(age), func() {})
	}
	require.True(t, take("n1", "a", 1))
	require.True(t, take("n1", "b", 2))
	require.False(t, take("n1", "c", 3), "this node has two")
	require.True(t, take("n2", "d", 4))
	require.False(t, take("n2", "e", 5), "any other has one")
	require.True(t, take("n3", "f", 6))
	require.Equal(t, 2, nodeSlots.Own().InUse())
}

func TestAResourceThatChangesItsNodeReleasesItsSlot(t *testing.T) {
	nodeSlots := NewNodeSlots("n1", 1, 1)
	nodeSlots.ForceAcquire("n2", "a")
	enqueued := 0
	require.False(t, nodeSlots.Queue("n2", "b", created(2), func() { enqueued++ }))
	nodeSlots.ForceAcquire("n3", "a")
	require.Equal(t, 1, enqueued)
	require.True(t, nodeSlots.TryAcquire("n2", "b", created(2), func() {}))
	require.Equal(t, 1, nodeSlots.On("n3").InUse())
	nodeSlots.Release("a")
	nodeSlots.Release("a")
	require.Zero(t, nodeSlots.On("n3").InUse())
	require.Len(t, nodeSlots.where, 1)
}

func TestChangedLimitsDisturbNoHolderAndEnqueueWhatMayStart(t *testing.T) {
	nodeSlots := NewNodeSlots("n1", 1, 1)
	recorded := &recorder{}
	queue := func(node string, uid types.UID, age int) bool {
		return nodeSlots.TryAcquire(node, uid, created(age), recorded.enqueue(uid))
	}
	require.True(t, queue("n1", "a", 1))
	require.True(t, queue("n2", "b", 1))
	require.False(t, queue("n1", "c", 2))
	require.False(t, queue("n2", "d", 2))
	nodeSlots.SetLimits(2, 2)
	require.ElementsMatch(t, []types.UID{"c", "d"}, recorded.enqueued)
	require.True(t, queue("n1", "c", 2))
	require.True(t, queue("n3", "e", 1))
	require.True(t, queue("n3", "f", 2), "a node that is new since then")
	nodeSlots.SetLimits(1, 1)
	require.Equal(t, 2, nodeSlots.Own().InUse())
	nodeSlots.Release("a")
	require.False(t, queue("n1", "g", 3), "one still works")
	nodeSlots.Release("c")
	require.True(t, queue("n1", "g", 3))
}
