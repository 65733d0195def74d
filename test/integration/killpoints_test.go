package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
)

// story is a transfer that always makes the same writes, and the end that it must come to.
type story struct {
	takes time.Duration
	set   func(s *site)
	act   func(s *site, name string) // what somebody else does meanwhile
	phase velerov1.PodVolumeBackupPhase
}

func stories() map[string]story {
	return map[string]story{
		"a success": {takes: 50 * time.Millisecond, phase: velerov1.PodVolumeBackupPhaseCompleted},
		"a failure": {
			takes: 50 * time.Millisecond, phase: velerov1.PodVolumeBackupPhaseFailed,
			set: func(s *site) { s.mover.Result = &node.Result{ExitCode: 1, Message: "disk on fire"} },
		},
		"a cancel": {
			takes: 30 * time.Second, phase: velerov1.PodVolumeBackupPhaseCanceled,
			act: func(s *site, name string) {
				s.says("Data-Path-Started", name)
				require.NoError(s, s.CancelPodVolumeBackup(s.soon(), name))
			},
		},
	}
}

func TestAnAgentThatIsKilledAtAnyWriteLosesNothing(t *testing.T) {
	for title, told := range stories() {
		t.Run(title, func(t *testing.T) {
			writes := writesOf(t, told)
			points := 0
			for at := 1; at <= writes; at++ {
				for _, after := range []bool{false, true} {
					points++
					t.Run(fmt.Sprintf("write %d, after %v", at, after), func(t *testing.T) { killedAt(t, told, at, after) })
				}
			}
			t.Logf("%s: %d writes, %d kill points", title, writes, points)
			require.Equal(t, 2*writes, points)
		})
	}
}

// writesOf tells a story without a fault and counts the agent's writes, Events and progress left out.
func writesOf(t *testing.T, told story) int {
	t.Helper()
	writes := 0
	t.Run("without a fault", func(t *testing.T) {
		s := prepare(buildSite(t, told.takes), told)
		counter := newKiller(0, false)
		s.start(through(counter.wrap))
		tell(s, told, s.transfer())
		seen := s.requests(cluster.Query{}).Where(func(r cluster.Record) bool { return r.Write() && r.Resource != "events" })
		counter.lock.Lock()
		writes = counter.writes
		counter.lock.Unlock()
		require.Len(t, seen, writes, "the audit log has other writes than the killer has counted: %v", seen)
	})
	return writes
}

func prepare(s *site, told story) *site {
	s.Helper()
	s.configure(`{}`)
	if told.set != nil {
		told.set(s)
	}
	return s
}

func tell(s *site, told story, name string) {
	s.Helper()
	if told.act != nil {
		told.act(s, name)
	}
	s.ends(name, told.phase)
}

func killedAt(t *testing.T, told story, at int, after bool) {
	t.Helper()
	s := prepare(newSite(t, told.takes), told)
	k := newKiller(at, after)
	first := s.start(through(k.wrap))
	name := s.transfer()
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-k.struck:
			first.cancel() // nothing of it gets through any more
			<-first.ended
			s.start()
		case <-s.Context().Done():
		}
	}()
	tell(s, told, name)
	<-done
	require.Equal(t, 1, s.moversMade(name))
}
