package reconcile

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

func TestADownloadWaitsForItsStorageClassUntilTheTimeout(t *testing.T) {
	for exists, phase := range map[bool]transfer.Phase{true: transfer.Accepted, false: transfer.Failed} {
		s := newDownload("late")
		require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
		require.Equal(t, transfer.New, s.state().Phase)
		s.clock.Step(s.Limits.PrepareTimeout)
		if exists {
			s.classes["late"] = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}}
		}
		s.step(t)
		require.Equal(t, phase, s.state().Phase)
		require.Equal(t, !exists, s.state().Message == "not ready to be prepared within 30m0s: storage class late of claim app/data does not exist")
	}
}

// TestALateWatchDoesNotFailADownload has a claim whose watch shows nothing within the prepare timeout.
func TestALateWatchDoesNotFailADownload(t *testing.T) {
	for name, test := range map[string]struct {
		exists  bool
		phase   transfer.Phase
		message string
	}{
		"the claim exists": {exists: true, phase: transfer.Accepted},
		"it does not":      {phase: transfer.Failed, message: "claim app/data does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newDownload("")
			s.target.known = false
			require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
			require.Empty(t, s.kube.Actions(), "its watch is enough")
			if test.exists {
				require.NoError(t, s.kube.Tracker().Add(s.target.claim))
			}
			s.clock.Step(s.Limits.PrepareTimeout)
			s.step(t)
			require.Equal(t, test.phase, s.state().Phase)
			require.Contains(t, s.state().Message, test.message)
		})
	}
}

// cancels cancels a transfer in a phase, while no pod can be read.
func cancels[T transfer.Object](t *testing.T, s *single[T], phase transfer.Phase) {
	t.Helper()
	s.failing = errors.New("no answer")
	state := s.state()
	state.Phase, state.Cancel = phase, true
	s.Kind.Set(s.object, state)
	s.step(t)
	require.Equal(t, transfer.Canceled, s.state().Phase)
}

// TestACancelIsHonoredDespiteReadErrors covers the phases in which no mover was started.
func TestACancelIsHonoredDespiteReadErrors(t *testing.T) {
	for _, phase := range []transfer.Phase{"", transfer.New, transfer.Accepted, transfer.Prepared} {
		t.Run(string(phase), func(t *testing.T) {
			cancels(t, newDownload("never-made"), phase)
			cancels(t, newBackup(), phase)
			cancels(t, newRestore(), phase)
		})
	}
}

func TestACancelIsHonoredThoughThePodIsUnreadable(t *testing.T) {
	s := newRestore()
	s.pods["app/db"] = targetOn(testNode)
	s.step(t)
	delete(s.pods, "app/db")
	s.failing = errors.New("no answer")
	_, err := s.Reconcile(t.Context(), testKey)
	require.ErrorContains(t, err, "get pod app/db: no answer")
	s.object.Spec.Cancel = true
	s.step(t)
	require.Equal(t, transfer.Canceled, s.state().Phase)
}

func TestABackupOfAPodThatCannotExistFails(t *testing.T) {
	for _, reference := range []corev1.ObjectReference{{Namespace: "app"}, {Name: "db"}, {Namespace: "app", Name: "d/b"}, {Namespace: "..", Name: "db"}} {
		s := newBackup()
		s.object.Spec.Pod = reference
		s.failing = errors.New("resource name may not be empty") // client-go's error for such names
		s.step(t)
		require.Equal(t, transfer.Accepted, s.state().Phase)
		s.step(t)
		require.Equal(t, transfer.Failed, s.state().Phase, "%+v", reference)
		require.Contains(t, s.state().Message, "does not exist")
		require.Equal(t, transfer.ReasonSourceGone, transfer.FailureOf(s.object))
	}
}

func TestARestoreToAPodThatCannotExistFails(t *testing.T) {
	s := newRestore()
	s.object.Spec.Pod = corev1.ObjectReference{Namespace: "app"}
	s.failing = errors.New("resource name may not be empty")
	after := s.step(t)
	s.clock.Step(after)
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
	require.Contains(t, s.state().Message, "pod app/ does not exist")
}

func TestThePrepareTimeoutAppliesDespiteReadErrors(t *testing.T) {
	s := newBackup()
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	s.failing = apierrors.NewForbidden(corev1.Resource("pods"), "db", errors.New("no rights"))
	_, err := s.Reconcile(t.Context(), testKey)
	require.ErrorContains(t, err, "no rights")
	s.clock.Step(s.Limits.PrepareTimeout)
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
	require.Contains(t, s.state().Message, "no rights")
}

func TestAQueuedDownloadIsObservedAgainBeforeItsTimeout(t *testing.T) {
	s := newDownload("")
	s.Admission = capacity.NewAdmission(1, 1, time.Hour, s.clock)
	s.Admission.Observe(capacity.Entry{UID: "first", Key: "datadownload/velero/first", Version: "1", Created: s.clock.Now().Add(-time.Hour), Restore: true, Phase: capacity.Admitted})
	s.TrackCapacity(s.object)
	require.Zero(t, s.step(t))
	require.Equal(t, transfer.New, s.state().Phase, "it queues")
	s.clock.Step(2 * s.Limits.PrepareTimeout)
	s.Admission.Forget("first")
	require.False(t, s.target.known, "its claim is not followed while it queues")
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
	require.Equal(t, transfer.New, s.state().Phase, "its claim was not listed yet: %s", s.state().Message)
	s.target.known = true
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
}

func TestOnlyATransferThatIsOrCanBeAcceptedHoldsAPlaceInTheQueue(t *testing.T) {
	for name, change := range map[string]func(*velerov2alpha1.DataDownload){
		"new":      func(*velerov2alpha1.DataDownload) {},
		"accepted": func(d *velerov2alpha1.DataDownload) { d.Status.Phase = velerov2alpha1.DataDownloadPhaseAccepted },
		"prepared": func(d *velerov2alpha1.DataDownload) { d.Status.Phase = velerov2alpha1.DataDownloadPhasePrepared },
		"canceled": func(d *velerov2alpha1.DataDownload) { d.Spec.Cancel = true },
		"terminal": func(d *velerov2alpha1.DataDownload) { d.Status.Phase = velerov2alpha1.DataDownloadPhaseCompleted },
		"deleting": func(d *velerov2alpha1.DataDownload) { d.DeletionTimestamp = new(metav1.Now()) },
	} {
		s := newDownload("")
		s.Admission = capacity.NewAdmission(1, 1, time.Hour, s.clock)
		change(s.object)
		s.TrackCapacity(s.object)
		s.Admission.Observe(capacity.Entry{UID: "next", Key: "datadownload/velero/next", Version: "1", Created: s.clock.Now().Add(time.Hour), Restore: true, Phase: capacity.Waiting})
		holds := name == "new" || name == "accepted" || name == "prepared"
		require.Equal(t, !holds, s.Admission.TryAdmit("next", func() {}), name)
	}
}

func TestAReturningAgentRestartsTheTimeouts(t *testing.T) {
	s := newBackup()
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	s.object.Spec.Node = "n2"
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
	s.Agent.Fleet = coordinatorFleet{}
	s.clock.Step(s.Limits.PrepareTimeout)
	require.Zero(t, s.step(t))
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
	require.Equal(t, transfer.New, s.state().Phase)
}
