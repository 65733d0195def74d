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
	t          *testing.T
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
	return &election{t: t, tracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())}
}

// join creates a candidate and starts its campaign.
func (p *election) join(lingers time.Duration) *candidate {
	p.t.Helper()
	m := &candidate{client: &fake.Clientset{}, done: make(chan struct{}), stopDelay: lingers}
	m.client.AddReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		m.lock.Lock()
		cut := m.disconnected
		m.lock.Unlock()
		if cut {
			return true, nil, errors.New("connection refused")
		}
		return p.serve(action)
	})
	m.client.AddWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := p.tracker.Watch(action.GetResource(), action.GetNamespace())
		p.lock.Lock()
		defer p.lock.Unlock()
		p.watches = append(p.watches, w)
		return true, w, err
	})
	var err error
	m.Coordinator, err = NewCoordinator(Options{
		Client: remote{m.client, p.latency}, Namespace: "velero", Name: testLease, Identity: cmp.Or(p.identity, fmt.Sprintf("agent-%d", len(p.candidates))), Former: p.former, Clock: clock.RealClock{}, Spread: p.spread, Agents: p.agents,
	})
	require.NoError(p.t, err)
	ctx, stop := context.WithCancel(klog.NewContext(p.t.Context(), klog.Logger{}))
	m.stop = stop
	p.candidates = append(p.candidates, m)
	go func() {
		defer close(m.done)
		if err := m.Run(ctx, m.term); err != nil {
			p.t.Error(err)
		}
	}()
	p.t.Cleanup(func() {
		stop()
		<-m.done
	})
	return m
}

// term is the work of a coordinator: it runs until the context ends, and takes a while to stop.
func (m *candidate) term(ctx context.Context) {
	m.lock.Lock()
	m.leading = true
	m.terms++
	m.lock.Unlock()
	<-ctx.Done()
	<-time.NewTimer(m.stopDelay).C
	m.lock.Lock()
	m.leading = false
	m.lock.Unlock()
}

func (m *candidate) leads() bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.leading
}

func (m *candidate) disconnect(cut bool) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.disconnected = cut
}

// serve answers a request like an API server.
func (p *election) serve(action clienttesting.Action) (bool, runtime.Object, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if update, ok := action.(clienttesting.UpdateAction); ok {
		lease := update.GetObject().(*coordinationv1.Lease).DeepCopy()
		if action.GetVerb() == "update" {
			stored, err := p.tracker.Get(action.GetResource(), lease.Namespace, lease.Name)
			if err != nil {
				return true, nil, err
			}
			if stored.(*coordinationv1.Lease).ResourceVersion != lease.ResourceVersion {
				return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), lease.Name, errors.New("stale"))
			}
		}
		p.version++
		lease.ResourceVersion = strconv.Itoa(p.version)
		if action.GetVerb() == "create" {
			return clienttesting.ObjectReaction(p.tracker)(clienttesting.NewCreateAction(action.GetResource(), lease.Namespace, lease))
		}
		return clienttesting.ObjectReaction(p.tracker)(clienttesting.NewUpdateAction(action.GetResource(), lease.Namespace, lease))
	}
	return clienttesting.ObjectReaction(p.tracker)(action)
}

// leaders returns the candidates whose term runs.
func (p *election) leaders() []*candidate {
	var leaders []*candidate
	for _, m := range p.candidates {
		if m.leads() {
			leaders = append(leaders, m)
		}
	}
	return leaders
}

// leader returns the only candidate whose term runs.
func (p *election) leader() *candidate {
	p.t.Helper()
	leaders := p.leaders()
	require.Len(p.t, leaders, 1)
	return leaders[0]
}

// requests counts all requests since its last call, by verb, except those of the given candidates.
func (p *election) requests(but ...*candidate) map[string]int {
	verbs := map[string]int{}
	for _, m := range p.candidates {
		for _, action := range m.client.Actions() {
			if len(but) == 0 || m != but[0] {
				verbs[action.GetVerb()]++
			}
		}
		m.client.ClearActions()
	}
	return verbs
}

// campaigned counts the requests of a campaign, in all and by verb: those that read or write the Lease, without watches.
func (p *election) campaigned() (total int, requests map[string]int) {
	requests = p.requests()
	delete(requests, "list")
	delete(requests, "watch")
	for _, count := range requests {
		total += count
	}
	return total, requests
}

// advance advances the time, and requires that no two terms run at once.
func (p *election) advance(d time.Duration) {
	p.t.Helper()
	for ; d > 0; d -= time.Second {
		<-time.NewTimer(min(d, time.Second)).C
		synctest.Wait()
		require.LessOrEqual(p.t, len(p.leaders()), 1)
	}
}

// lease returns the stored Lease.
func (p *election) lease() *coordinationv1.Lease {
	p.t.Helper()
	lease, err := p.tracker.Get(coordinationv1.SchemeGroupVersion.WithResource("leases"), "velero", testLease)
	require.NoError(p.t, err)
	return lease.(*coordinationv1.Lease)
}

// endWatches ends all watches, as an API server does after some minutes.
func (p *election) endWatches(last ...runtime.Object) {
	p.lock.Lock()
	watches := p.watches
	p.watches = nil
	p.lock.Unlock()
	for _, w := range watches {
		for _, object := range last {
			w.(*watch.RaceFreeFakeWatcher).Error(object)
		}
		w.Stop()
	}
}

// expireWatches ends all watches because their resourceVersion is too old.
func (p *election) expireWatches() {
	p.endWatches(&apierrors.NewResourceExpired("too old resource version").ErrStatus)
}
