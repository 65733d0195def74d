package informers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
)

// eventServer is an API server with only the Events of movers. Each layer is a client of client-go that implements only
// the called methods; all others would panic.
type eventServer struct {
	lock     sync.Mutex
	open     []*watch.RaceFreeFakeWatcher
	requests []metav1.ListOptions // of watches
	opened   []time.Time
	refusals int // number of watches to refuse
	lists    []metav1.ListOptions
	unlisted error // the answer to lists
	silent   bool  // lists get no answer
}

type eventClient struct {
	kubernetes.Interface
	typedcorev1.CoreV1Interface
	typedcorev1.EventInterface
	*eventServer
}

func (e eventClient) CoreV1() typedcorev1.CoreV1Interface { return e }
func (e eventClient) Events(namespace string) typedcorev1.EventInterface {
	return inNamespace{e, namespace}
}

type inNamespace struct {
	eventClient
	namespace string
}

func (i inNamespace) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	i.lock.Lock()
	defer i.lock.Unlock()
	i.requests = append(i.requests, opts)
	i.opened = append(i.opened, time.Now())
	if i.namespace != "velero" {
		return nil, errors.New("movers send no Events in namespace " + i.namespace)
	}
	if i.refusals > 0 {
		i.refusals--
		return nil, errors.New("the API server is unreachable")
	}
	w := watch.NewRaceFreeFake()
	context.AfterFunc(ctx, w.Stop)
	i.open = append(i.open, w)
	return w, nil
}

func (i inNamespace) List(ctx context.Context, opts metav1.ListOptions) (*corev1.EventList, error) {
	i.lock.Lock()
	defer i.lock.Unlock()
	i.lists = append(i.lists, opts)
	if i.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &corev1.EventList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(100 * len(i.lists))}}, i.unlisted
}

// eventsFixture is a MoverEvents in a synctest bubble.
type eventsFixture struct {
	*MoverEvents
	*eventServer
	stop     context.CancelFunc
	enqueued int
}

func newEventsFixture(t *testing.T) *eventsFixture {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, stop := context.WithCancel(ctx)
	s := &eventsFixture{eventServer: &eventServer{}, stop: stop}
	s.MoverEvents = NewMoverEvents(ctx, eventClient{eventServer: s.eventServer}, "velero", clock.RealClock{})
	t.Cleanup(func() {
		stop()
		s.Wait()
	})
	return s
}

func (e *eventsFixture) watch(uid types.UID) {
	e.Watch(uid, func() { e.enqueued++ })
	synctest.Wait()
}

// send sends an Event through the watch with number n.
func (e *eventsFixture) send(n int, reason, message string, second int64) {
	e.open[n].Add(event(reason, message, second))
	synctest.Wait()
}

func event(reason, message string, second int64) *corev1.Event {
	return &corev1.Event{Reason: reason, Message: message, LastTimestamp: metav1.Unix(second, 0)}
}

func (e *eventsFixture) takeEnqueued() int {
	enqueued := e.enqueued
	e.enqueued = 0
	return enqueued
}

func (e *eventsFixture) requireLast(t *testing.T, reason, message string, second int64) {
	t.Helper()
	reported, at, ok := e.Last("uid", reason, nil)
	require.True(t, ok, "nothing was received")
	require.Equal(t, message, reported)
	require.True(t, at.Equal(time.Unix(second, 0)), "reported at %s", at)
}

const (
	started  = "Data-Path-Started"
	progress = "Data-Path-Progress"
)

func TestEventsOfAMoverAreRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventsFixture(t)
		_, _, ok := s.Last("uid", started, nil)
		require.False(t, ok, "the mover is not watched yet")
		s.watch("uid")
		s.watch("uid")
		require.Equal(t, []metav1.ListOptions{{FieldSelector: "involvedObject.uid=uid"}}, s.requests, "one watch")
		_, _, ok = s.Last("uid", started, nil)
		require.False(t, ok, "nothing was reported yet")

		s.send(0, started, "started", 10)
		s.send(0, progress, `{"doneBytes":1}`, 20)
		require.Equal(t, 2, s.takeEnqueued())
		s.requireLast(t, started, "started", 10)
		s.requireLast(t, progress, `{"doneBytes":1}`, 20)

		s.open[0].Modify(event(progress, `{"doneBytes":2}`, 30)) // movers patch one Event for each reason
		synctest.Wait()
		require.Equal(t, 1, s.takeEnqueued())
		s.requireLast(t, progress, `{"doneBytes":2}`, 30)
		s.send(0, progress, `{"doneBytes":3}`, 30)
		s.requireLast(t, progress, `{"doneBytes":3}`, 30) // within the same second
		s.takeEnqueued()
		s.send(0, progress, "early", 20)
		require.Zero(t, s.takeEnqueued(), "an older Event says nothing new")
		s.requireLast(t, progress, `{"doneBytes":3}`, 30)
	})
}

func TestOnlyEventsOfMoversAreRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventsFixture(t)
		s.watch("uid")
		s.send(0, "Accepted", "our own Event", 10)
		s.open[0].Delete(event(progress, "an Event that expires", 10))
		s.open[0].Error(&metav1.Status{Code: 410})
		synctest.Wait()
		require.Zero(t, s.takeEnqueued())
		for _, reason := range []string{"Accepted", progress} {
			_, _, ok := s.Last("uid", reason, nil)
			require.False(t, ok, reason)
		}
	})
}

func TestForgettingAMoverClosesItsWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventsFixture(t)
		s.watch("uid")
		s.watch("other")
		s.send(0, started, "started", 10)
		s.Forget("uid")
		s.Forget("uid")
		s.Forget("never followed")
		synctest.Wait()
		require.True(t, s.open[0].IsStopped())
		require.False(t, s.open[1].IsStopped(), "the other mover is still followed")
		_, _, ok := s.Last("uid", started, nil)
		require.False(t, ok, "its reports are forgotten")

		s.watch("uid")
		require.Len(t, s.requests, 3, "a restarted mover is watched again")
		s.refusals = 1000
		s.watch("unreachable")
		s.Forget("unreachable")
		pass(time.Hour)
		require.Len(t, s.requests, 4, "the retries of its watch end too")
	})
}

// pass advances the time in the bubble.
func pass(duration time.Duration) {
	timer := time.NewTimer(duration)
	<-timer.C
	synctest.Wait()
}

func TestAnEndedWatchIsReopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventsFixture(t)
		s.watch("uid")
		s.send(0, progress, "before", 10)
		s.takeEnqueued()
		s.open[0].Stop()
		pass(minBackoff)
		require.Len(t, s.open, 2)
		s.requireLast(t, progress, "before", 10) // kept meanwhile
		s.send(1, progress, "after", 20)
		require.Equal(t, 1, s.takeEnqueued())
		s.requireLast(t, progress, "after", 20)
	})
}

func TestAFailedWatchIsRetriedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventsFixture(t)
		s.refusals = 12
		s.watch("uid")
		pass(10 * time.Minute)
		var pauses []time.Duration
		for i := range s.opened[1:] {
			pauses = append(pauses, s.opened[i+1].Sub(s.opened[i]))
		}
		ms, sec := time.Millisecond, time.Second
		require.Equal(t, []time.Duration{
			100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 12800 * ms, 25600 * ms, 30 * sec, 30 * sec, 30 * sec,
		}, pauses)
		require.Len(t, s.open, 1, "and then it is open")
	})
}

func TestAnEventResetsTheBackoffOfItsWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventsFixture(t)
		s.refusals = 5
		s.watch("uid")
		pass(time.Minute)
		require.Len(t, s.open, 1)
		s.send(0, progress, "something", 10)
		ended := time.Now()
		s.open[0].Stop()
		pass(time.Minute)
		require.Equal(t, minBackoff, s.opened[6].Sub(ended))
	})
}

func TestAllWatchesEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEventsFixture(t)
		s.watch("uid")
		s.watch("other")
		s.stop()
		s.Wait()
		require.True(t, s.open[0].IsStopped())
		require.True(t, s.open[1].IsStopped())
		s.watch("late")
		require.Len(t, s.requests, 2, "none is opened after that")
	})
}

func TestEventsOfALostMoverDoNotCountForTheNext(t *testing.T) {
	mover := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Unix(100, 0)}, Spec: corev1.PodSpec{NodeName: "n2"}}
	for name, test := range map[string]struct {
		host    string
		created int64  // when the lost mover first sent it
		next    string // the host of the Events of the next mover
	}{
		"from a node that is reachable again":                    {"n1", 50, "n2"},
		"that is its first":                                      {"n1", 150, "n2"},
		"on the node of the next one, where it ended late":       {"n2", 50, "n2"},
		"before it knew its node, by a template that was edited": {"", 50, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newEventsFixture(t)
				s.watch("uid")
				late := sentFrom(event(progress, "of the lost one", 200), "lost", test.host, test.created)
				s.open[0].Add(late)
				synctest.Wait()
				_, _, ok := s.Last("uid", progress, mover)
				require.False(t, ok, "the next one has not reported anything")
				s.open[0].Add(sentFrom(event(progress, "of the next one", 120), "next", test.next, 120))
				s.open[0].Modify(late)
				synctest.Wait()
				message, at, ok := s.Last("uid", progress, mover)
				require.True(t, ok)
				require.Equal(t, "of the next one", message)
				require.Equal(t, int64(120), at.Unix())
			})
		})
	}
}

// sentFrom turns an Event into one with that name, from a node, first sent in that second.
func sentFrom(event *corev1.Event, name, host string, created int64) *corev1.Event {
	event.Name, event.Source.Host, event.CreationTimestamp = name, host, metav1.Unix(created, 0)
	return event
}

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
