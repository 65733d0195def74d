package leader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

func TestTheFirstCandidateCreatesAndRenewsTheLease(t *testing.T) {
	elected(t, 0, func(p *election, m *candidate) {
		require.Same(p, m, p.leader())
		require.Equal(p, map[string]int{"list": 1, "watch": 1, "get": 1, "create": 1, "update": 1}, p.requests())
		require.Equal(p, "agent-0", *p.lease().Spec.HolderIdentity)
		require.Equal(p, int32(30), *p.lease().Spec.LeaseDurationSeconds)
		p.advance(time.Hour)
		require.Same(p, m, p.leader())
		require.Equal(p, 1, m.terms)
		require.Equal(p, map[string]int{"update": 720}, p.requests(), "one renewal in five seconds")
		m.stop()
		<-m.done
		now := new(metav1.NowMicro())
		require.Equal(p, coordinationv1.LeaseSpec{
			HolderIdentity: new(""), LeaseDurationSeconds: new(int32(1)), LeaseTransitions: new(int32(0)), AcquireTime: now, RenewTime: now,
		}, p.lease().Spec)
	})
}

// TestTheRequestsOfAnElectionDoNotGrowWithTheNumberOfAgents: with a fixed spread of one second, the GETs of 30 of 1,500
// candidates are on their way before the first has won.
func TestTheRequestsOfAnElectionDoNotGrowWithTheNumberOfAgents(t *testing.T) {
	for _, agents := range []int{50, 1500} {
		t.Run(strconv.Itoa(agents), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newElection(t)
				p.agents, p.latency = agents, 20*time.Millisecond
				for range agents {
					p.join(0)
				}
				p.advance(2 * time.Second)
				p.leader()
				total, requests := p.campaigned()
				require.LessOrEqual(t, total, 10, "%v", requests)
				p.advance(time.Minute)
				require.Empty(t, p.requests(p.leader()), "the others only watch")
				p.leader().stop()
				p.advance(2 * time.Second)
				p.leader()
				total, requests = p.campaigned()
				require.LessOrEqual(t, total, 12, "after a release: %v", requests)
			})
		})
	}
}

func TestACandidateThatLosesAnElectionIsIdleAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		p.spread, p.latency = 1, time.Second/10 // all campaign at once, and none observes the winner first
		for range 50 {
			p.join(0)
		}
		p.advance(2 * time.Second)
		leader := p.leader()
		require.Equal(t, 49, p.requests(leader)["get"], "all took part")
		p.advance(5 * time.Minute)
		require.Empty(t, p.requests(leader))
		require.Same(t, leader, p.leader())
		leader.stop()
		p.advance(2 * time.Second)
		require.NotSame(t, leader, p.leader(), "they campaign again")
	})
}

func TestALeaseThatIsListedAgainOrLabelledIsNotRenewed(t *testing.T) {
	elected(t, 0, func(p *election, first *candidate) {
		second := p.join(0)
		p.advance(time.Minute)
		first.disconnect(true)
		p.advance(10 * time.Second)
		p.expireWatches()
		p.advance(10 * time.Second)
		lease := p.lease().DeepCopy()
		lease.Labels = map[string]string{"team": "storage"}
		_, err := second.client.CoordinationV1().Leases("velero").Update(p.Context(), lease, metav1.UpdateOptions{})
		require.NoError(p, err)
		p.advance(12 * time.Second)
		require.Same(p, second, p.leader())
	})
}

func TestTheLeaseIsReleasedAtTheEndOfTheTerm(t *testing.T) {
	elected(t, 40*time.Second, func(p *election, first *candidate) { // longer than the Lease lasts
		second := p.join(0)
		p.advance(time.Minute)
		first.stop()
		p.advance(39 * time.Second)
		require.Same(p, first, p.leader(), "it renews while its term comes to its end")
		require.Equal(p, "agent-0", *p.lease().Spec.HolderIdentity)
		p.advance(3 * time.Second)
		require.Same(p, second, p.leader(), "at once, and not when the Lease has expired")
		<-first.done
	})
}

func TestTheLeaseOfACandidateThatDiedExpires(t *testing.T) {
	elected(t, 0, func(p *election, first *candidate) {
		second := p.join(0)
		p.advance(time.Minute)
		first.disconnect(true) // like a process that dies; this one ends its term when it cannot renew
		p.requests()
		p.advance(19 * time.Second)
		require.Empty(p, p.requests(first))
		p.advance(13 * time.Second)
		require.Same(p, second, p.leader(), "30 s after the last renewal that it saw, and its share of the spread")
		requests := p.requests(first)
		require.Equal(p, 1, requests["get"], "it does not wait for the Lease to expire once more: %v", requests)
		require.Equal(p, int32(1), *p.lease().Spec.LeaseTransitions)
	})
}

func TestACoordinatorThatCannotRenewEndsItsTermBeforeTheNextBegins(t *testing.T) {
	elected(t, 3*time.Second, func(p *election, first *candidate) {
		p.join(0)
		p.advance(8 * time.Second)
		first.disconnect(true)
		p.advance(24 * time.Second)
		require.Empty(p, p.leaders(), "20 s without a renewal and 3 s to come to its end")
		first.disconnect(false)
		p.advance(time.Minute)
		p.leader()
		require.LessOrEqual(p, first.terms+p.candidates[1].terms, 3)
	})
}

func TestACoordinatorThatObservesAnotherOneStopsAndLetsOthersCampaignFirst(t *testing.T) {
	elected(t, 0, func(p *election, first *candidate) {
		p.identity = "patient"
		second := p.join(0)
		require.Greater(p, second.startJitter(), first.startJitter())
		take := func(identity string) {
			lease := p.lease().DeepCopy()
			*lease.Spec.HolderIdentity = identity
			_, err := second.client.CoordinationV1().Leases("velero").Update(p.Context(), lease, metav1.UpdateOptions{})
			require.NoError(p, err)
			p.advance(time.Second)
		}
		take("usurper")
		require.False(p, first.leads(), "at once: not when it has failed to renew for 20 s")
		require.Equal(p, "usurper", *p.lease().Spec.HolderIdentity, "what it does not hold it does not give back")
		take("")
		p.advance(time.Second)
		require.Same(p, second, p.leader())
	})
}

func TestADeletedLeaseIsRecreated(t *testing.T) {
	elected(t, 0, func(p *election, _ *candidate) {
		second := p.join(0)
		p.advance(time.Second)
		require.NoError(p, p.candidates[0].client.CoordinationV1().Leases("velero").Delete(p.Context(), testLease, metav1.DeleteOptions{}))
		p.advance(10 * time.Second)
		require.Same(p, second, p.leader(), "before its former holder would renew it")
		require.Equal(p, "agent-1", *p.lease().Spec.HolderIdentity)
	})
}

func TestACandidateWaitsUntilItHasObservedTheLease(t *testing.T) {
	elected(t, 0, func(p *election, _ *candidate) {
		blind := p.join(0)
		blind.disconnect(true)
		p.advance(5 * time.Minute)
		require.Zero(p, p.requests(p.candidates[0])["get"], "it takes part in no election")
		require.Zero(p, blind.terms)
	})
}

func TestTheSpreadGrowsWithTheAgents(t *testing.T) {
	for agents, spread := range map[int]time.Duration{0: time.Second, 100: 2 * time.Second, 100_000: 30 * time.Second} {
		c, err := NewCoordinator(Options{Client: &fake.Clientset{}, Name: testLease, Identity: "a", Clock: clock.RealClock{}, Agents: agents})
		require.NoError(t, err)
		require.Equal(t, []time.Duration{30 * time.Second, 20 * time.Second, 5 * time.Second, spread}, []time.Duration{c.Lease, c.Renew, c.Retry, c.Spread})
	}
}

func TestTheStartJitterIsBoundedAndDiffersPerCandidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newElection(t)
		shares := map[time.Duration]bool{}
		for range 100 {
			m := p.join(0)
			require.Less(t, m.startJitter(), time.Second)
			shares[m.startJitter()/(10*time.Millisecond)] = true
		}
		require.Greater(t, len(shares), 50)
	})
}

const testLease = "lateen-coordinator"

// election is an API server for one Lease and its candidates, in a synctest bubble. Unlike client-go's tracker
// alone, it refuses a write with an old resourceVersion.
type election struct {
	*testing.T
	lock       sync.Mutex
	tracker    clienttesting.ObjectTracker
	version    int
	watches    []watch.Interface
	candidates []*candidate
	spread     time.Duration // of candidates that join
	agents     int           // number of candidates that candidates that join know of
	latency    time.Duration // duration of a GET of candidates that join

	identity, former string // of the next candidate, if set
}

// remote is a client whose answers take time.
type remote struct {
	*fake.Clientset
	latency time.Duration
}

type remoteGroup struct {
	coordinationclient.CoordinationV1Interface
	latency time.Duration
}

type remoteLeases struct {
	coordinationclient.LeaseInterface
	latency time.Duration
}

func (r remote) CoordinationV1() coordinationclient.CoordinationV1Interface {
	return remoteGroup{r.Clientset.CoordinationV1(), r.latency}
}

func (r remoteGroup) Leases(namespace string) coordinationclient.LeaseInterface {
	return remoteLeases{r.CoordinationV1Interface.Leases(namespace), r.latency}
}

func (r remoteLeases) Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error) {
	<-time.NewTimer(r.latency).C
	return r.LeaseInterface.Get(ctx, name, opts)
}

// candidate is an agent that campaigns for the Lease.
type candidate struct {
	*Coordinator
	client *fake.Clientset
	stop   context.CancelFunc
	done   chan struct{} // closed when Run has returned

	lock         sync.Mutex
	disconnected bool          // its requests fail
	leading      bool          // its term runs
	terms        int           // number of started terms
	stopDelay    time.Duration // how long its term takes to end
}

func newElection(t *testing.T) *election {
	t.Helper()
	return &election{T: t, tracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())}
}

// elected runs a test in a bubble, in which the first candidate leads. Its term takes a while to end.
func elected(t *testing.T, lingers time.Duration, test func(e *election, first *candidate)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newElection(t)
		first := e.join(lingers)
		e.advance(2 * time.Second)
		test(e, first)
	})
}

// join creates a candidate and starts its campaign.
func (e *election) join(lingers time.Duration) *candidate {
	e.Helper()
	c := &candidate{client: &fake.Clientset{}, done: make(chan struct{}), stopDelay: lingers}
	c.client.AddReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		c.lock.Lock()
		cut := c.disconnected
		c.lock.Unlock()
		if cut {
			return true, nil, errors.New("connection refused")
		}
		return e.serve(action)
	})
	c.client.AddWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := e.tracker.Watch(action.GetResource(), action.GetNamespace())
		e.lock.Lock()
		defer e.lock.Unlock()
		e.watches = append(e.watches, w)
		return true, w, err
	})
	var err error
	c.Coordinator, err = NewCoordinator(Options{
		Client: remote{c.client, e.latency}, Namespace: "velero", Name: testLease, Identity: cmp.Or(e.identity, fmt.Sprintf("agent-%d", len(e.candidates))), Former: e.former, Clock: clock.RealClock{}, Spread: e.spread, Agents: e.agents,
	})
	require.NoError(e, err)
	ctx, stop := context.WithCancel(klog.NewContext(e.Context(), klog.Logger{}))
	c.stop = stop
	e.candidates = append(e.candidates, c)
	go func() {
		defer close(c.done)
		if err := c.Run(ctx, c.term); err != nil {
			e.Error(err)
		}
	}()
	e.Cleanup(func() {
		stop()
		<-c.done
	})
	return c
}

// term is the work of a coordinator: it runs until the context ends, and takes a while to stop.
func (c *candidate) term(ctx context.Context) {
	c.lock.Lock()
	c.leading = true
	c.terms++
	c.lock.Unlock()
	<-ctx.Done()
	<-time.NewTimer(c.stopDelay).C
	c.lock.Lock()
	c.leading = false
	c.lock.Unlock()
}

func (c *candidate) leads() bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.leading
}

func (c *candidate) disconnect(cut bool) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.disconnected = cut
}

// serve answers a request like an API server.
func (e *election) serve(action clienttesting.Action) (bool, runtime.Object, error) {
	e.lock.Lock()
	defer e.lock.Unlock()
	if update, ok := action.(clienttesting.UpdateAction); ok {
		lease := update.GetObject().(*coordinationv1.Lease).DeepCopy()
		if action.GetVerb() == "update" {
			stored, err := e.tracker.Get(action.GetResource(), lease.Namespace, lease.Name)
			if err != nil {
				return true, nil, err
			}
			if stored.(*coordinationv1.Lease).ResourceVersion != lease.ResourceVersion {
				return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), lease.Name, errors.New("stale"))
			}
		}
		e.version++
		lease.ResourceVersion = strconv.Itoa(e.version)
		if action.GetVerb() == "create" {
			return clienttesting.ObjectReaction(e.tracker)(clienttesting.NewCreateAction(action.GetResource(), lease.Namespace, lease))
		}
		return clienttesting.ObjectReaction(e.tracker)(clienttesting.NewUpdateAction(action.GetResource(), lease.Namespace, lease))
	}
	return clienttesting.ObjectReaction(e.tracker)(action)
}

// leaders returns the candidates whose term runs.
func (e *election) leaders() []*candidate {
	return slices.DeleteFunc(slices.Clone(e.candidates), func(c *candidate) bool { return !c.leads() })
}

// leader returns the only candidate whose term runs.
func (e *election) leader() *candidate {
	e.Helper()
	leaders := e.leaders()
	require.Len(e, leaders, 1)
	return leaders[0]
}

// requests counts all requests since its last call, by verb, except those of the given candidates.
func (e *election) requests(but ...*candidate) map[string]int {
	verbs := map[string]int{}
	for _, c := range e.candidates {
		for _, action := range c.client.Actions() {
			if len(but) == 0 || c != but[0] {
				verbs[action.GetVerb()]++
			}
		}
		c.client.ClearActions()
	}
	return verbs
}

// campaigned counts the requests of a campaign, in all and by verb: those that read or write the Lease, without watches.
func (e *election) campaigned() (total int, requests map[string]int) {
	requests = e.requests()
	delete(requests, "list")
	delete(requests, "watch")
	for _, count := range requests {
		total += count
	}
	return total, requests
}

// advance advances the time, and requires that no two terms run at once.
func (e *election) advance(d time.Duration) {
	e.Helper()
	for ; d > 0; d -= time.Second {
		<-time.NewTimer(min(d, time.Second)).C
		synctest.Wait()
		require.LessOrEqual(e, len(e.leaders()), 1)
	}
}

// lease returns the stored Lease.
func (e *election) lease() *coordinationv1.Lease {
	e.Helper()
	lease, err := e.tracker.Get(coordinationv1.SchemeGroupVersion.WithResource("leases"), "velero", testLease)
	require.NoError(e, err)
	return lease.(*coordinationv1.Lease)
}

// expireWatches ends all watches because their resourceVersion is too old.
func (e *election) expireWatches() {
	e.lock.Lock()
	watches := e.watches
	e.watches = nil
	e.lock.Unlock()
	for _, w := range watches {
		w.(*watch.RaceFreeFakeWatcher).Error(&apierrors.NewResourceExpired("too old resource version").ErrStatus)
		w.Stop()
	}
}
