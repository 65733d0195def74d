package reconcile

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestAConflictIsRequeuedWithoutAnEvent(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "b1", errors.New("rejected by a webhook"))
	s := newFixture(t, fault{call: "patch podvolumebackups", ordinal: 1, err: conflict})
	requeue, err := s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	require.Positive(t, requeue, "no event follows: nothing was written")
}

func TestAnUnconfirmedStartKeepsItsSlotUntilTheCacheShowsIt(t *testing.T) {
	s := newFixture(t, fault{call: "patch podvolumebackups", ordinal: 3, err: errors.New("timeout"), committed: true})
	for range 3 { // accept, create the mover, mark it prepared
		_, err := s.Reconcile(t.Context(), testKey)
		require.NoError(t, err)
		s.kubelet(t)
	}
	require.Equal(t, velerov1.PodVolumeBackupPhasePrepared, s.object.Status.Phase)
	late := s.object.DeepCopy()
	s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return late.DeepCopy(), true }
	_, err := s.Reconcile(t.Context(), testKey)
	require.Error(t, err, "the write may have succeeded")
	require.Equal(t, velerov1.PodVolumeBackupPhaseInProgress, s.object.Status.Phase)
	_, err = s.Reconcile(t.Context(), testKey)
	require.NoError(t, err, "it is a conflict with itself")
	require.Equal(t, 4, s.calls["patch podvolumebackups"])
	require.Equal(t, 1, s.NodeSlots.Own().InUse(), "another one could start beside it")
	s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return s.object.DeepCopy(), true }
	s.run(t)
	require.Zero(t, s.NodeSlots.Own().InUse())
}

func TestALateEventOfATransferThatThisAgentStartedKeepsItsSlot(t *testing.T) {
	s := newFixture(t, fault{})
	late := s.object.DeepCopy()
	late.Spec.Node = "" // as a DataUpload, which gets its node later
	for range 4 {       // accept, create the mover, mark it prepared, start it
		_, err := s.Reconcile(t.Context(), testKey)
		require.NoError(t, err)
		s.kubelet(t)
	}
	require.Equal(t, velerov1.PodVolumeBackupPhaseInProgress, s.object.Status.Phase)
	s.TrackCapacity(late)
	require.Equal(t, 1, s.NodeSlots.Own().InUse(), "another one could start beside it")
}

func TestARejectionIsReportedOncePerReason(t *testing.T) {
	refusal := func(why string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "b1", errors.New(why))
	}
	s := newFixture(t, fault{})
	_, err := s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	require.Empty(t, s.events.Events, "the resource says that it is accepted")
	for i, err := range []error{
		refusal("exceeded quota: a"), refusal("exceeded quota: a"), errors.New("connection refused"), refusal("exceeded quota: b"),
		apierrors.NewInternalError(errors.New("failed calling webhook")), apierrors.NewTooManyRequestsError("busy"), apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "a", errors.New("in use")),
	} {
		s.fault = fault{call: "create pods", ordinal: i + 1, err: err}
		_, err := s.Reconcile(t.Context(), testKey)
		require.Error(t, err)
	}
	reported := s.sent()
	require.Len(t, reported, 3, "%q", reported)
	require.Regexp(t, "^Warning MoverCreateFailed .*exceeded quota: a", reported[0])
	require.Regexp(t, "^Warning MoverCreateFailed .*exceeded quota: b", reported[1])
	require.Regexp(t, "^Warning MoverCreateFailed .*failed calling webhook", reported[2])
}
