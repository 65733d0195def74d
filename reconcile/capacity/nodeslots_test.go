package capacity

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

func TestPlacesOfNodesAreApart(t *testing.T) {
	places := NewNodeSlots("n1", 2, 1)
	take := func(node string, uid types.UID, age int) bool {
		return places.TryAcquire(node, uid, created(age), func() {})
	}
	require.True(t, take("n1", "a", 1))
	require.True(t, take("n1", "b", 2))
	require.False(t, take("n1", "c", 3), "this node has two")
	require.True(t, take("n2", "d", 4))
	require.False(t, take("n2", "e", 5), "any other has one")
	require.True(t, take("n3", "f", 6))
	require.Equal(t, 2, places.Own().InUse())
}

func TestAResourceIsReleasedWhereverItHeldAPlace(t *testing.T) {
	places := NewNodeSlots("n1", 1, 1)
	places.ForceAcquire("n2", "a")
	woken := false
	require.False(t, places.Queue("n2", "b", created(2), func() { woken = true }))
	places.Release("a")
	require.True(t, woken)
	require.Zero(t, places.Own().InUse())
}

func TestAResourceThatMovesToAnotherNodeLeavesItsSlot(t *testing.T) {
	places := NewNodeSlots("n1", 1, 1)
	places.ForceAcquire("n2", "a")
	woken := 0
	require.False(t, places.Queue("n2", "b", created(2), func() { woken++ }))
	places.ForceAcquire("n3", "a")
	require.Equal(t, 1, woken)
	require.True(t, places.TryAcquire("n2", "b", created(2), func() {}))
	require.Equal(t, 1, places.On("n3").InUse())
	places.Release("a")
	places.Release("a")
	require.Zero(t, places.On("n3").InUse())
	require.Len(t, places.where, 1)
}
