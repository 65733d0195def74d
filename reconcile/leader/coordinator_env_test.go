package leader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	var leaders []*candidate
	for _, c := range e.candidates {
		if c.leads() {
			leaders = append(leaders, c)
		}
	}
	return leaders
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
