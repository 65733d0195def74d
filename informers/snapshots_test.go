package informers

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// slowDiscovery answers that there are no snapshots once it may.
type slowDiscovery struct {
	discovery.ServerResourcesInterface

	requests, answer chan struct{}
}

func (s slowDiscovery) ServerResourcesForGroupVersion(string) (*metav1.APIResourceList, error) {
	close(s.requests)
	<-s.answer
	return nil, apierrors.NewNotFound(schema.GroupResource{}, "")
}

func TestASlowDiscoveryDelaysNoRead(t *testing.T) {
	slow := slowDiscovery{requests: make(chan struct{}), answer: make(chan struct{})}
	snapshots := NewSnapshots(nil, slow, nil)
	ended, end := context.WithCancel(t.Context())
	end()
	for _, term := range []*snapshotTerm{nil, {ctx: ended}} {
		snapshots.set(term)
		_, err := snapshots.Available(t.Context())
		require.ErrorIs(t, err, errNotCoordinating, "nothing is asked outside of a term")
	}
	snapshots.set(&snapshotTerm{ctx: t.Context()})
	available := make(chan bool)
	go func() {
		served, err := snapshots.Available(t.Context())
		available <- served || err != nil
	}()
	<-slow.requests
	require.Nil(t, snapshots.Snapshot("app", "a"))
	require.Nil(t, snapshots.Content("a"))
	close(slow.answer)
	require.False(t, <-available)
}
