package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/reconcile/seeds"
	"github.com/lateen-project/lateen/test/cluster"
)

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
	const tales, ofEach = 4, 6 // in a sample
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

// withoutFault tells a story without a fault: how many writes the agent makes, Events and the Lease left out,
// and how it ends.
func withoutFault(t *testing.T, reported scenario) (writes int, end string) {
	t.Helper()
	require.True(t, t.Run("without a fault", func(t *testing.T) {
		s, around := reported.setUp(t)
		counter := newKiller(0, false)
		s.start(through(around.watch), through(counter.wrap))
		end = reported.run(s, around, around.create())
		seen := s.requests(cluster.Query{}).Where(func(r cluster.Record) bool {
			return r.Write() && r.Resource != "events" && r.Resource != "leases"
		})
		writes = counter.counted()
		require.Len(t, seen, writes, "the audit log has other writes than the killer has counted: %v", seen)
	}))
	return writes, end
}

// killedAt tells a story in which the first agent is killed at a write and a second one takes over.
func killedAt(t *testing.T, reported scenario, at killPoint) (end string) {
	t.Helper()
	t.Parallel()
	s, around := reported.setUp(t)
	history, err := s.Record(t.Context())
	require.NoError(t, err)
	k := newKiller(at.write, at.after)
	first := s.start(shortTerm, through(around.watch), through(k.wrap))
	second := s.assemble(shortTerm, through(around.watch))
	successor := s.follows(k, first, second)
	name := around.create()
	end = reported.run(s, around, name)
	select {
	case <-k.struck:
	case <-s.soon().Done():
		require.Fail(t, "the story ended without the write at which the agent is killed")
	}
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
			first.cancel() // nothing of it gets through any more
			<-first.ended
			second.run()
		case <-s.Context().Done():
		}
	}()
	return successor
}
