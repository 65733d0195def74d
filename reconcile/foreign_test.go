package reconcile

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"

	"github.com/lateen-project/lateen/reconcile/transfer"
)

// newForeign returns a DataDownload for another data mover, in that phase.
func newForeign(phase velerov2alpha1.DataDownloadPhase) *single[*velerov2alpha1.DataDownload] {
	s := newDownload("")
	s.object.Spec.DataMover, s.object.Status.Phase = "acme", phase
	return s
}

func TestAForeignTransferIsReportedOnceAndNotChanged(t *testing.T) {
	s := newForeign("")
	before := s.object.DeepCopy()
	s.observed(t)
	for range 3 {
		require.Zero(t, s.step(t))
	}
	require.Equal(t, before, s.object)
	require.Equal(t, []string{`Normal ForeignDataMover Ignored by Lateen: it is for data mover "acme", not Velero's own. That data mover must be installed and accept it`}, s.sent())
}

func TestAForeignTransferWithItsDataMoverIsNeitherReportedNorRead(t *testing.T) {
	for _, phase := range []velerov2alpha1.DataDownloadPhase{"Accepted", "InProgress", "Completed", "Failed"} {
		s := newForeign(phase)
		s.failing = errors.New("its mover must not be read")
		require.Zero(t, s.step(t))
		require.Empty(t, s.events.Events, phase)
		require.Empty(t, s.kube.Actions())
	}
}

func TestOnlyTheCoordinatorReportsAndCountsForeignTransfers(t *testing.T) {
	s := newForeign("")
	taken := s.object.DeepCopy()
	taken.Status.Phase = velerov2alpha1.DataDownloadPhaseInProgress
	finished := s.object.DeepCopy()
	finished.Status.Phase = velerov2alpha1.DataDownloadPhaseCompleted
	s.clock.Step(90 * time.Second)
	count := func() (foreign map[string]int, age float64) {
		foreign = map[string]int{}
		for _, one := range s.Count([]*velerov2alpha1.DataDownload{s.object, taken, finished}) {
			require.Zero(t, one.Transfers, "they are not this agent's")
			if one.Foreign > 0 {
				foreign[one.Phase] = one.Foreign
			}
			if one.Phase == string(transfer.New) {
				age = one.ForeignAge
			}
		}
		return foreign, age
	}
	foreign, age := count()
	require.Equal(t, map[string]int{"New": 1, "InProgress": 1, "Completed": 1}, foreign)
	require.InDelta(t, 90, age, 0.001)
	s.Agent.Fleet = followerFleet{}
	foreign, age = count()
	require.Empty(t, foreign)
	require.Zero(t, age)
	s.step(t)
	require.Empty(t, s.events.Events)
}
