package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/cluster"
)

func TestAnAgentThatIsKilledAtAnyWriteLosesNothing(t *testing.T) {
	for _, kind := range swept(t) {
		for _, outcome := range outcomes() {
			told := story{kind: kind, outcome: outcome}
			t.Run(told.String(), func(t *testing.T) {
				writes, end := withoutFault(t, told)
				t.Logf("%s: %d writes in the audit log, each with a kill before and one after it", told, writes)
				for at := 1; at <= writes; at++ {
					for when, after := range map[string]bool{"before": false, "after": true} {
						t.Run(fmt.Sprintf("%s write %d", when, at), func(t *testing.T) {
							require.Equal(t, end, killedAt(t, told, at, after))
						})
					}
				}
			})
		}
	}
}

// withoutFault tells a story without a fault: how many writes the agent makes, Events and the Lease left out,
// and how it ends.
func withoutFault(t *testing.T, told story) (writes int, end string) {
	t.Helper()
	require.True(t, t.Run("without a fault", func(t *testing.T) {
		s, around := told.stage(t)
		counter := newKiller(0, false)
		s.start(told.options, through(around.watch), through(counter.wrap))
		end = told.tell(s, around, around.create())
		seen := s.requests(cluster.Query{}).Where(func(r cluster.Record) bool {
			return r.Write() && r.Resource != "events" && r.Resource != "leases"
		})
		writes = counter.counted()
		require.Len(t, seen, writes, "the audit log has other writes than the killer has counted: %v", seen)
	}))
	return writes, end
}

// killedAt tells a story in which the first agent is killed at a write and a second one takes over.
func killedAt(t *testing.T, told story, at int, after bool) (end string) {
	t.Helper()
	t.Parallel()
	s, around := told.stage(t)
	history, err := s.Record(t.Context())
	require.NoError(t, err)
	k := newKiller(at, after)
	first, second := s.start(told.options, through(around.watch), through(k.wrap)), s.assemble(told.options, through(around.watch))
	successor := s.follows(k, first, second)
	name := around.create()
	end = told.tell(s, around, name)
	select {
	case <-k.struck:
	case <-s.soon().Done():
		require.Fail(t, "the story ended without the write at which the agent is killed")
	}
	<-successor
	requireMovers(t, told, s.moversMade(name))
	requireOneEnd(t, history, name)
	return end
}

// follows has a second agent run as soon as the first one has been killed. The channel is closed once it does.
func (s *site) follows(k *killer, first, second *agentRun) <-chan struct{} {
	successor := make(chan struct{})
	go func() {
		defer close(successor)
		select {
		case <-k.struck:
			first.cancel() // nothing of it gets through any more
			<-first.ended
			if err := s.endTerm(); err != nil {
				s.Errorf("end the term of the dead agent: %v", err)
			}
			second.run()
		case <-s.Context().Done():
		}
	}()
	return successor
}

// endTerm lets the next agent coordinate without waiting until the term of one that was killed runs out.
func (s *site) endTerm() error {
	err := s.Kube.CoordinationV1().Leases(s.Namespace).Delete(s.Context(), "lateen-coordinator", metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// requireMovers wants exactly one mover, or, where the time may have run out before it was made, no more.
func requireMovers(t *testing.T, told story, made int) {
	t.Helper()
	if told.outcome == late {
		require.LessOrEqual(t, made, 1)
		return
	}
	require.Equal(t, 1, made)
}
