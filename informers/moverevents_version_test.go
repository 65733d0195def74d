package informers

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestAWatchOfAMoverThatStartsDoesNotReadExistingEvents: without a resourceVersion the API server reads all Events of the
// namespace from etcd.
func TestAWatchOfAMoverThatStartsDoesNotReadExistingEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventsFixture(t)
		s.watchNext("uid")
		s.watchNext("uid")
		require.Equal(t, []metav1.ListOptions{{Limit: 1}}, s.lists)
		require.Equal(t, []metav1.ListOptions{{FieldSelector: "involvedObject.uid=uid", ResourceVersion: "100"}}, s.requests)
		s.send(0, started, "started", 10)
		s.requireLast(t, started, "started", 10)
	})
}

func TestABurstOfMoversNeedsOneRequestForTheVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventsFixture(t)
		s.watchNext("a")
		s.watchNext("b")
		pass(versionAge - 1)
		s.watchNext("c")
		require.Equal(t, []string{"100", "100", "100"}, s.versions())
		pass(versionAge)
		s.watchNext("d")
		require.Equal(t, "200", s.versions()[3], "the API server does not replay what is older")
		require.Len(t, s.lists, 2)
	})
}

func TestEventsTellTheVersionOfTheNextWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventsFixture(t)
		s.watch("resumed") // returns existing Events first, which are old
		s.watchNext("a")
		pass(versionAge / 2)
		sent, old := event(progress, "one", 10), event(progress, "old", 5)
		sent.ResourceVersion, old.ResourceVersion = "150", "7"
		s.open[1].Add(sent)
		synctest.Wait() // both watches count what they enqueue in one number
		s.open[0].Add(old)
		synctest.Wait()
		pass(versionAge / 2)
		s.watchNext("b")
		require.Equal(t, []string{"", "100", "150"}, s.versions())
		require.Len(t, s.lists, 1)
		s.open[1].Stop()
		pass(minBackoff)
		require.Equal(t, "150", s.versions()[3], "it continues where it ended")
	})
}

func TestAWatchWithAnExpiredVersionStartsWithTheExistingEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventsFixture(t)
		s.watchNext("uid")
		expired := apierrors.NewResourceExpired("compacted").Status()
		s.open[0].Error(&expired)
		synctest.Wait()
		require.Equal(t, []string{"100", ""}, s.versions())
		s.send(1, progress, "missed", 10)
		s.requireLast(t, progress, "missed", 10)
	})
}

func TestARefusedVersionStartsWithTheExistingEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventsFixture(t)
		s.unlisted = errors.New("the API server is unreachable")
		s.watchNext("uid")
		require.Equal(t, []string{""}, s.versions())
		s.silent = true
		began := time.Now()
		s.watchNext("other")
		require.Equal(t, 5*time.Second, time.Since(began), "a mover waits for it")
		require.Equal(t, []string{"", ""}, s.versions())
	})
}

// watchNext opens the watch of a mover that is about to start.
func (e *eventsFixture) watchNext(uid types.UID) {
	e.WatchNext(e.ctx, uid, func() { e.enqueued++ })
	synctest.Wait()
}

// versions returns the resourceVersions of the requested watches.
func (e *eventsFixture) versions() (all []string) {
	for _, request := range e.requests {
		all = append(all, request.ResourceVersion)
	}
	return all
}
