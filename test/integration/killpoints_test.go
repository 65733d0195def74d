package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/world"
)

// story is a transfer that always makes the same writes, and the end that it must come to.
type story struct {
	takes time.Duration
	set   func(s *site)
	act   func(s *site, name string) // what somebody else does meanwhile
	phase world.Phase
}

func stories() map[string]story {
	return map[string]story{
		"a success": {takes: 50 * time.Millisecond, phase: world.Completed},
		"a failure": {
			takes: 50 * time.Millisecond, phase: world.Failed,
			set: func(s *site) { s.mover.Result = &node.Result{ExitCode: 1, Message: "disk on fire"} },
		},
		"a cancel": {
			takes: 30 * time.Second, phase: world.Canceled,
			act: func(s *site, name string) {
				s.says("Data-Path-Started", name)
				require.NoError(s, s.Transfers(world.PodVolumeBackup).Cancel(s.soon(), name))
			},
		},
	}
}

func TestAnAgentThatIsKilledAtAnyWriteLosesNothing(t *testing.T) {
	for title, told := range stories() {
		t.Run(title, func(t *testing.T) {
			writes, end := withoutFault(t, told)
			t.Logf("%s: %d writes in the audit log, each with a kill before and one after it", title, writes)
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

// withoutFault tells a story without a fault: how many writes the agent makes, Events left out, and how it
// ends.
func withoutFault(t *testing.T, told story) (writes int, end string) {
	t.Helper()
	require.True(t, t.Run("without a fault", func(t *testing.T) {
		s := stage(buildSite(t, told.takes, heard), told)
		counter := newKiller(0, false)
		s.start(through(counter.wrap))
		end = tell(s, told, s.transfer())
		seen := s.requests(cluster.Query{}).Where(func(r cluster.Record) bool { return r.Write() && r.Resource != "events" })
		writes = counter.counted()
		require.Len(t, seen, writes, "the audit log has other writes than the killer has counted: %v", seen)
	}))
	return writes, end
}

// killedAt tells a story in which the first agent is killed at a write and a second one takes over.
func killedAt(t *testing.T, told story, at int, after bool) (end string) {
	t.Helper()
	t.Parallel()
	s := stage(buildSite(t, told.takes, heard), told)
	history, err := s.Record(t.Context())
	require.NoError(t, err)
	k := newKiller(at, after)
	first, second := s.start(through(k.wrap)), s.assemble()
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
	name := s.transfer()
	end = tell(s, told, name)
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

func stage(s *site, told story) *site {
	s.Helper()
	s.configure(`{}`)
	if told.set != nil {
		told.set(s)
	}
	return s
}

// tell returns how the story ends.
func tell(s *site, told story, name string) string {
	s.Helper()
	if told.act != nil {
		told.act(s, name)
	}
	return remains(s.ends(name, told.phase))
}
