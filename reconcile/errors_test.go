package reconcile

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A reserved slot stays reserved unless an answer proves that nothing was written. Otherwise another transfer would
// take the slot of a running one. A rejected write releases its slot at once (T6).
func TestASlotIsReleasedOnlyIfNothingWasWritten(t *testing.T) {
	resource := velerov1.Resource("podvolumebackups")
	for name, test := range map[string]struct {
		answer error
		kept   int
	}{
		"500":              {apierrors.NewInternalError(errors.New("etcd")), 1},
		"503":              {apierrors.NewServiceUnavailable("starting"), 1},
		"504":              {apierrors.NewTimeoutError("etcd", 1), 1},
		"timeout":          {context.DeadlineExceeded, 1},
		"connection reset": {io.ErrUnexpectedEOF, 1},
		"403":              {apierrors.NewForbidden(resource, "b1", errors.New("no rights")), 0},
		"422":              {apierrors.NewInvalid(velerov1.SchemeGroupVersion.WithKind("PodVolumeBackup").GroupKind(), "b1", nil), 0},
		"429":              {apierrors.NewTooManyRequests("slow down", 1), 0},
	} {
		for outcome, committed := range map[string]bool{"it was written": true, "it was not written": false} {
			if committed && test.kept == 0 {
				continue
			}
			t.Run(name+", "+outcome, func(t *testing.T) {
				const starts = 3 // after Accepted and Prepared
				s := newFixture(t, fault{call: "patch podvolumebackups", ordinal: starts, err: test.answer, committed: committed})
				for s.calls["patch podvolumebackups"] < starts {
					_, err := s.Reconcile(t.Context(), testKey)
					require.Equal(t, s.calls["patch podvolumebackups"] == starts, err != nil, "%v", err)
					s.kubelet(t)
				}
				require.Equal(t, test.kept, s.NodeSlots.Own().InUse())
			})
		}
	}
}

// An error does not prove the end of a pod: neither the mover nor the source counts as deleted (T6).
func TestAnErrorIsNotTheEndOfAPod(t *testing.T) {
	for name, phase := range map[string]velerov1.PodVolumeBackupPhase{
		"of the mover":  velerov1.PodVolumeBackupPhaseInProgress,
		"of the source": velerov1.PodVolumeBackupPhaseAccepted,
	} {
		t.Run(name, func(t *testing.T) {
			s := newRunning()
			s.object.Status.Phase = phase
			if phase == velerov1.PodVolumeBackupPhaseInProgress { // the source is known to exist
				s.pods["app/db"] = sourcePod()
			}
			s.failing = apierrors.NewForbidden(corev1.Resource("pods"), "db", errors.New("no rights"))
			_, err := s.Reconcile(t.Context(), testKey)
			require.ErrorIs(t, err, s.failing)
			require.Equal(t, "1", s.object.ResourceVersion, "nothing is written")
			require.Empty(t, s.kube.Actions(), "nothing is created and nothing is deleted")
		})
	}
}

// A mover that has not started may never see a cancel, so it is deleted at once (T6).
func TestAReportOfAnEarlierMoverDoesNotCountForTheCurrentOne(t *testing.T) {
	for after, started := range map[time.Duration]bool{0: true, -time.Second: false} {
		s := newWorking()
		s.reports[eventStarted] = report{at: s.object.Status.StartTimestamp.Add(after)}
		require.Equal(t, started, s.observed(t).observed.Started)
	}
}
