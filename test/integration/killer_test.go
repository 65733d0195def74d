package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/reconcile/seeds"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
)

// killer stands between an agent and the API server. At the chosen write it ends the agent as SIGKILL
// would: that request and every later one never get through, or this one does and its answer is lost.
type killer struct {
	at    int  // which write; 0 is none
	after bool // the write happens, only its answer is lost

	lock   sync.Mutex
	writes int
	dead   bool
	struck chan struct{} // closed when the agent is dead
}

func newKiller(at int, after bool) *killer {
	return &killer{at: at, after: after, struck: make(chan struct{})}
}

var errDead = errors.New("the agent has been killed")

func (k *killer) wrap(next http.RoundTripper) http.RoundTripper {
	return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
		dead, strike := k.count(request)
		if strike {
			defer close(k.struck)
		}
		if dead || strike && !k.after {
			return nil, errDead
		}
		response, err := next.RoundTrip(request)
		if !strike {
			return response, err
		}
		if err == nil {
			_ = response.Body.Close() // nobody reads it any more
		}
		return nil, errDead
	})
}

// count reports whether the agent is dead, or dies by this request.
func (k *killer) count(request *http.Request) (dead, strike bool) {
	k.lock.Lock()
	defer k.lock.Unlock()
	if k.dead || !fixture.IsWrite(request) {
		return k.dead, false
	}
	k.writes++
	k.dead = k.writes == k.at
	return false, k.dead
}

// counted is how many writes there were so far.
func (k *killer) counted() int {
	k.lock.Lock()
	defer k.lock.Unlock()
	return k.writes
}

// killPoint is a moment at which an agent is killed.
type killPoint struct {
	write int // from 1 on
	after bool
}

func (k killPoint) String() string {
	if k.after {
		return fmt.Sprintf("after write %d", k.write)
	}
	return fmt.Sprintf("before write %d", k.write)
}

// killPoints are those before and after each of so many writes.
func killPoints(writes int) (all []killPoint) {
	for write := 1; write <= writes; write++ {
		all = append(all, killPoint{write: write}, killPoint{write: write, after: true})
	}
	return all
}

func TestAnAgentThatIsKilledAtAnyWriteLosesNothing(t *testing.T) {
	t.Parallel()
	const tales, ofEach = 4, 2 // in a sample
	seeds.Each(t, 1, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		for _, reported := range sample(random, scenarios(t, outcomes()...), tales) {
			t.Run(reported.String(), func(t *testing.T) {
				t.Parallel()
				writes, end := withoutFault(t, reported)
				t.Logf("%s: %d writes in the audit log, each with a kill before and one after it", reported, writes)
				for _, at := range sample(random, killPoints(writes), ofEach) {
					t.Run(at.String(), func(t *testing.T) { require.Equal(t, end, killedAt(t, reported, at)) })
				}
			})
		}
	})
}

// withoutFault runs a scenario without a fault: how many writes the agent makes, Events and the Lease left out,
// and how it ends.
func withoutFault(t *testing.T, reported scenario) (writes int, end string) {
	t.Helper()
	require.True(t, t.Run("without a fault", func(t *testing.T) {
		s, around := reported.setUp(t)
		counter := newKiller(0, false)
		s.start(fixture.Through(around.watch), fixture.Through(counter.wrap))
		end = reported.run(s, around, around.create())
		seen := s.requests(cluster.Query{}).Where(func(r cluster.Record) bool {
			return r.Write() && r.Resource != "events" && r.Resource != "leases"
		})
		writes = counter.counted()
		require.Len(t, seen, writes, "the audit log has other writes than the killer has counted: %v", seen)
	}))
	return writes, end
}

// killedAt runs a scenario in which the first agent is killed at a write and a second one takes over.
func killedAt(t *testing.T, reported scenario, at killPoint) (end string) {
	t.Helper()
	t.Parallel()
	s, around := reported.setUp(t)
	history := s.record()
	k := newKiller(at.write, at.after)
	first := s.start(shortTerm, fixture.Through(around.watch), fixture.Through(k.wrap))
	second := s.assemble(shortTerm, fixture.Through(around.watch))
	successor := s.follows(k, first, second)
	name := around.create()
	end = reported.run(s, around, name)
	s.await(k.struck, "the write at which the agent is killed")
	<-successor
	require.Equal(t, 1, s.moversMade(name))
	requireOneEnd(t, history, name)
	return end
}

// follows has a second agent run as soon as the first one has been killed. The channel is closed once it does.
func (s *env) follows(k *killer, first, second *agentRun) <-chan struct{} {
	successor := make(chan struct{})
	go func() {
		defer close(successor)
		select {
		case <-k.struck:
			first.Cancel() // nothing of it gets through any more
			<-first.Ended()
			second.run()
		case <-s.Context().Done():
		}
	}()
	return successor
}
