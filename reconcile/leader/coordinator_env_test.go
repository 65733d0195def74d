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

// parliament is an API server for one Lease and its candidates, in a synctest bubble. Unlike client-go's tracker
// alone, it refuses a write with an old resourceVersion.
type parliament struct {
	t       *testing.T
	lock    sync.Mutex
	tracker clienttesting.ObjectTracker
	version int
	watches []watch.Interface
	all     []*member
	spread  time.Duration // of candidates that join
	answers time.Duration // duration of a GET of candidates that join

	identity, former string // of the next candidate, if set
}

// remote is a client whose answers take time.
type remote struct {
	*fake.Clientset
	answers time.Duration
}

type remoteGroup struct {
	coordinationclient.CoordinationV1Interface
	answers time.Duration
}

type remoteLeases struct {
	coordinationclient.LeaseInterface
	answers time.Duration
}

func (r remote) CoordinationV1() coordinationclient.CoordinationV1Interface {
	return remoteGroup{r.Clientset.CoordinationV1(), r.answers}
}

func (r remoteGroup) Leases(namespace string) coordinationclient.LeaseInterface {
	return remoteLeases{r.CoordinationV1Interface.Leases(namespace), r.answers}
}

func (r remoteLeases) Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error) {
	<-time.NewTimer(r.answers).C
	return r.LeaseInterface.Get(ctx, name, opts)
}

// member is one candidate.
type member struct {
	*Coordinator
	client *fake.Clientset
	stop   context.CancelFunc
	done   chan struct{} // closed when Run has returned

	lock    sync.Mutex
	cut     bool          // its requests fail
	leading bool          // its term runs
	terms   int           // number of started terms
	lingers time.Duration // how long its term takes to end
}

func newParliament(t *testing.T) *parliament {
	t.Helper()
	return &parliament{t: t, tracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())}
}

// join creates a candidate and starts its campaign.
func (p *parliament) join(lingers time.Duration) *member {
	p.t.Helper()
	m := &member{client: &fake.Clientset{}, done: make(chan struct{}), lingers: lingers}
	m.client.AddReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		m.lock.Lock()
		cut := m.cut
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
		Client: remote{m.client, p.answers}, Namespace: "velero", Name: testLease, Identity: cmp.Or(p.identity, fmt.Sprintf("agent-%d", len(p.all))), Former: p.former, Clock: clock.RealClock{}, Spread: p.spread,
	})
	require.NoError(p.t, err)
	ctx, stop := context.WithCancel(klog.NewContext(p.t.Context(), klog.Logger{}))
	m.stop = stop
	p.all = append(p.all, m)
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
func (m *member) term(ctx context.Context) {
	m.lock.Lock()
	m.leading = true
	m.terms++
	m.lock.Unlock()
	<-ctx.Done()
	<-time.NewTimer(m.lingers).C
	m.lock.Lock()
	m.leading = false
	m.lock.Unlock()
}

func (m *member) leads() bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.leading
}

func (m *member) sever(cut bool) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.cut = cut
}

// serve answers a request like an API server.
func (p *parliament) serve(action clienttesting.Action) (bool, runtime.Object, error) {
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

// leaders returns the members whose term runs.
func (p *parliament) leaders() []*member {
	var leaders []*member
	for _, m := range p.all {
		if m.leads() {
			leaders = append(leaders, m)
		}
	}
	return leaders
}

// leader returns the only member whose term runs.
func (p *parliament) leader() *member {
	p.t.Helper()
	leaders := p.leaders()
	require.Len(p.t, leaders, 1)
	return leaders[0]
}

// requests counts all requests since its last call, by verb, except those of the given members.
func (p *parliament) requests(but ...*member) map[string]int {
	verbs := map[string]int{}
	for _, m := range p.all {
		for _, action := range m.client.Actions() {
			if len(but) == 0 || m != but[0] {
				verbs[action.GetVerb()]++
			}
		}
		m.client.ClearActions()
	}
	return verbs
}

// pass advances the time, and requires that no two terms run at once.
func (p *parliament) pass(d time.Duration) {
	p.t.Helper()
	for ; d > 0; d -= time.Second {
		<-time.NewTimer(min(d, time.Second)).C
		synctest.Wait()
		require.LessOrEqual(p.t, len(p.leaders()), 1)
	}
}

// lease returns the stored Lease.
func (p *parliament) lease() *coordinationv1.Lease {
	p.t.Helper()
	lease, err := p.tracker.Get(coordinationv1.SchemeGroupVersion.WithResource("leases"), "velero", testLease)
	require.NoError(p.t, err)
	return lease.(*coordinationv1.Lease)
}

// endWatches ends all watches, as an API server does after some minutes.
func (p *parliament) endWatches(last ...runtime.Object) {
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
func (p *parliament) expireWatches() {
	p.endWatches(&apierrors.NewResourceExpired("too old resource version").ErrStatus)
}
