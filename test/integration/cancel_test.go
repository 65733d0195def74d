package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
)

// reach brings a PodVolumeBackup to a phase and keeps it there.
func reach(s *site, phase velerov1.PodVolumeBackupPhase) string {
	switch phase {
	case velerov1.PodVolumeBackupPhaseAccepted:
		s.node.Faults.Add(node.Fault{NeverStarts: true})
	case velerov1.PodVolumeBackupPhasePrepared: // the only slot is taken
		s.in(s.transfer(), velerov1.PodVolumeBackupPhaseInProgress)
	default:
	}
	name := s.transfer()
	s.in(name, phase)
	return name
}

func TestACancelIsHonouredAtOnce(t *testing.T) {
	for _, phase := range []velerov1.PodVolumeBackupPhase{"Accepted", "Prepared", "InProgress"} {
		t.Run("in "+string(phase), func(t *testing.T) {
			s := newSite(t, 4*time.Second)
			s.configure(`{}`)
			r := s.start()
			name := reach(s, phase)
			if phase == velerov1.PodVolumeBackupPhaseInProgress {
				s.says("Data-Path-Started", name)
			}
			require.NoError(t, s.CancelPodVolumeBackup(s.soon(), name))
			s.ends(name, velerov1.PodVolumeBackupPhaseCanceled)
			require.Equal(t, 1, r.finished("Canceled", "canceled"))
			require.Equal(t, 1, s.moversMade(name))
		})
	}
}

func TestACancelOfWhatNobodyHasAcceptedYet(t *testing.T) {
	s := newSite(t, 50*time.Millisecond)
	s.configure(`{}`)
	name := s.transfer(func(b *velerov1.PodVolumeBackup) { b.Spec.Cancel = true })
	r := s.start()
	s.ends(name, velerov1.PodVolumeBackupPhaseCanceled)
	require.Zero(t, s.moversMade(name))
	require.Equal(t, 1, r.finished("Canceled", "canceled"))
}

func TestACancelThatTheMoverMayNotHaveSeenDeletesIt(t *testing.T) {
	s := newSite(t, 30*time.Second)
	s.mover.Silent = true
	s.configure(`{}`)
	s.start()
	name := s.transfer()
	s.in(name, velerov1.PodVolumeBackupPhaseInProgress)
	require.NoError(t, s.CancelPodVolumeBackup(s.soon(), name))
	s.ends(name, velerov1.PodVolumeBackupPhaseCanceled)
}

func TestACancelThatTheMoverIgnoresDeletesItAfterTheGrace(t *testing.T) {
	s := newSite(t, 30*time.Second)
	s.mover.Deaf = true
	s.configure(`{}`)
	s.start(func(options *agent.Options) { options.Limits.CancelGrace = 500 * time.Millisecond })
	name := s.transfer()
	s.in(name, velerov1.PodVolumeBackupPhaseInProgress)
	s.says("Data-Path-Started", name)
	began := time.Now()
	require.NoError(t, s.CancelPodVolumeBackup(s.soon(), name))
	s.ends(name, velerov1.PodVolumeBackupPhaseCanceled)
	require.GreaterOrEqual(t, time.Since(began), 500*time.Millisecond)
}

func TestADeletionIsACancelAndLeavesNothing(t *testing.T) {
	for _, phase := range []velerov1.PodVolumeBackupPhase{"Accepted", "Prepared", "InProgress"} {
		t.Run("in "+string(phase), func(t *testing.T) {
			s := newSite(t, 4*time.Second)
			s.configure(`{}`)
			s.start()
			name := reach(s, phase)
			require.NoError(t, s.DeletePodVolumeBackup(s.soon(), name))
			require.NoError(t, s.WaitPVBGone(s.soon(), name))
			require.NoError(t, s.WaitPodGone(s.soon(), s.Namespace, name))
			if phase != velerov1.PodVolumeBackupPhaseInProgress {
				return
			}
			flips := s.requests(cluster.Query{Verbs: []string{"patch"}, Name: name}).Where(func(r cluster.Record) bool {
				return string(r.Body) != "" && containsAll(string(r.Body), `"cancel":true`)
			})
			require.Len(t, flips, 1, "the mover is told by exactly one update")
			require.NotContains(t, string(flips[0].Body), "status")
		})
	}
}
