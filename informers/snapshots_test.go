package informers

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"
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
	snapshots := NewSnapshots(nil, slow, nil, Watchdog{})
	ended, end := context.WithCancel(t.Context())
	end()
	for _, term := range []*snapshotTerm{nil, {ctx: ended}} {
		snapshots.set(term)
		_, err := snapshots.Available(t.Context())
		require.ErrorIs(t, err, errNotCoordinating, "nothing is asked outside of a term")
	}
	snapshots.set(&snapshotTerm{ctx: t.Context()})
	available := make(chan bool)
	go func() { served, err := snapshots.Available(t.Context()); available <- served || err != nil }()
	<-slow.requests
	require.Nil(t, snapshots.Snapshot("app", "a"))
	require.Nil(t, snapshots.Content("a"))
	close(slow.answer)
	require.False(t, <-available)
	snapshots.set(&snapshotTerm{ctx: t.Context(), started: true})
	served, err := snapshots.Available(t.Context())
	require.NoError(t, err)
	require.True(t, served)
}

func TestSnapshotsThatCannotBeWatchedAreReported(t *testing.T) {
	client := fake.NewSimpleClientset() //nolint:staticcheck // there is no other in this module
	client.PrependWatchReactor("volumesnapshotcontents", func(ktesting.Action) (bool, watch.Interface, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	})
	reported, logged := make(chan string, 9), make(chan string, 9)
	failing := Watchdog{Clock: clocktesting.NewFakePassiveClock(time.Time{}), Report: func(failing string) { reported <- failing }}
	snapshots := NewSnapshots(client.SnapshotV1(), nil, nil, failing)
	log := funcr.New(func(_, line string) { logged <- line }, funcr.Options{})
	ctx, end := context.WithCancel(klog.NewContext(t.Context(), log))
	term := &snapshotTerm{ctx: ctx}
	require.NoError(t, term.watch(snapshots))
	require.Contains(t, <-reported, "volumesnapshotcontents: ")
	snapshots.set(term)
	expired, cancel := context.WithTimeout(ctx, 0)
	defer cancel()
	_, err := snapshots.Available(expired)
	require.EqualError(t, err, "read snapshots: caches are not synced yet")
	end()
	term.running.Wait()
	require.NotEmpty(t, logged)
	require.Contains(t, <-logged, "Failed to watch")
}
