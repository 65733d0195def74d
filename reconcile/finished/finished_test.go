package finished

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

// fixture has DataUploads of Backup b with UID u, and a Backup of any phase.
type fixture struct {
	Collector
	uploads []velerov2alpha1.DataUpload
	phase   velerov1.BackupPhase // of Backup b; empty: it does not exist
	asked   int                  // reads of owners
	deleted []string
}

// newFixture has DataUploads of these names that ended two hours ago.
func newFixture(phase velerov1.BackupPhase, names ...string) *fixture {
	f := &fixture{phase: phase}
	f.Collector = Collector{
		TTL: time.Hour, Clock: clocktesting.NewFakePassiveClock(time.Now()), Pause: func(context.Context) bool { return true },
		Kinds: []Kind{{
			Resource: "datauploads", OwnerKind: "Backup",
			List: func(_ context.Context, options metav1.ListOptions) (runtime.Object, error) {
				if options.LabelSelector != "lateen.dev/done=true" {
					return nil, errors.New("transfers that are not done are listed: " + options.LabelSelector)
				}
				return &velerov2alpha1.DataUploadList{Items: f.uploads}, nil
			},
			Owner: func(context.Context, string) (types.UID, string, error) {
				f.asked++
				if f.phase == "" {
					return "u", "", apierrors.NewNotFound(velerov1.Resource("backups"), "b")
				}
				return "u", string(f.phase), nil
			},
			Delete: func(_ context.Context, name string, options metav1.DeleteOptions) error {
				if *options.Preconditions.UID != types.UID("uid of "+name) || *options.Preconditions.ResourceVersion != "7" {
					return errors.New("a delete without preconditions")
				}
				f.deleted = append(f.deleted, name)
				return nil
			},
		}},
	}
	for _, name := range names {
		f.add(name, 2*time.Hour)
	}
	return f
}

// add adds a DataUpload that ended that long ago.
func (f *fixture) add(name string, ago time.Duration, change ...func(*velerov2alpha1.DataUpload)) {
	upload := velerov2alpha1.DataUpload{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid of " + name), ResourceVersion: "7",
			OwnerReferences: []metav1.OwnerReference{{Kind: "Backup", Name: "b", UID: "u"}},
		},
		Status: velerov2alpha1.DataUploadStatus{CompletionTimestamp: new(metav1.NewTime(f.Clock.Now().Add(-ago)))},
	}
	for _, c := range change {
		c(&upload)
	}
	f.uploads = append(f.uploads, upload)
}

func TestOnlyTransfersOfADoneOwnerAreDeleted(t *testing.T) {
	for phase, want := range map[velerov1.BackupPhase]bool{
		velerov1.BackupPhaseCompleted: true, velerov1.BackupPhasePartiallyFailed: true, velerov1.BackupPhaseFailed: true,
		velerov1.BackupPhaseFailedValidation: true, "": true,
		velerov1.BackupPhaseNew: false, velerov1.BackupPhaseInProgress: false, velerov1.BackupPhaseDeleting: false,
		velerov1.BackupPhaseWaitingForPluginOperations: false, velerov1.BackupPhaseWaitingForPluginOperationsPartiallyFailed: false,
		velerov1.BackupPhaseFinalizing: false, velerov1.BackupPhaseFinalizingPartiallyFailed: false, "a phase of a later Velero": false,
	} {
		t.Run(string(phase), func(t *testing.T) {
			f := newFixture(phase, "first", "second")
			require.NoError(t, f.Sweep(t.Context()))
			if want {
				require.Equal(t, []string{"first", "second"}, f.deleted)
				return
			}
			require.Empty(t, f.deleted)
			require.Equal(t, 1, f.asked, "an owner that is not done is read once a sweep")
		})
	}
}

func TestWhatMayStillBeNeededStays(t *testing.T) {
	f := newFixture(velerov1.BackupPhaseCompleted)
	f.add("young", time.Hour)
	f.add("deleting", 2*time.Hour, func(upload *velerov2alpha1.DataUpload) { upload.DeletionTimestamp = new(metav1.Now()) })
	f.add("without an end", 0, func(upload *velerov2alpha1.DataUpload) { upload.Status.CompletionTimestamp = nil })
	f.add("without an owner", 2*time.Hour, func(upload *velerov2alpha1.DataUpload) { upload.OwnerReferences = nil })
	f.add("of another owner", 2*time.Hour, func(upload *velerov2alpha1.DataUpload) { upload.OwnerReferences[0].Kind = "Job" })
	require.NoError(t, f.Sweep(t.Context()))
	require.Empty(t, f.deleted)
	require.Zero(t, f.asked)
}

func TestARecreatedOwnerDoesNotKeepATransfer(t *testing.T) {
	f := newFixture(velerov1.BackupPhaseInProgress)
	f.add("of the one before", 2*time.Hour, func(upload *velerov2alpha1.DataUpload) { upload.OwnerReferences[0].UID = "before" })
	require.NoError(t, f.Sweep(t.Context()))
	require.Equal(t, []string{"of the one before"}, f.deleted)
}

func TestAnOwnerThatCannotBeReadKeepsItsTransfers(t *testing.T) {
	f := newFixture(velerov1.BackupPhaseCompleted, "first")
	f.Kinds[0].Owner = func(context.Context, string) (types.UID, string, error) { return "", "", errors.New("no answer") }
	require.ErrorContains(t, f.Sweep(t.Context()), "get Backup b: no answer")
	require.Empty(t, f.deleted)
	f.Kinds[0].List = func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, errors.New("no answer") }
	deleted, err := f.sweep(t.Context(), f.Kinds[0])
	require.EqualError(t, err, "list finished datauploads: no answer")
	require.Zero(t, deleted)
}

func TestATransferThatChangedStays(t *testing.T) {
	f := newFixture(velerov1.BackupPhaseCompleted, "first", "second")
	tried, answer := 0, error(apierrors.NewConflict(velerov2alpha1.Resource("datauploads"), "first", errors.New("changed")))
	f.Kinds[0].Delete = func(context.Context, string, metav1.DeleteOptions) error { tried++; return answer }
	require.NoError(t, f.Sweep(t.Context()))
	answer = apierrors.NewNotFound(velerov2alpha1.Resource("datauploads"), "first")
	require.NoError(t, f.Sweep(t.Context()))
	tried, answer = 0, errors.New("no answer")
	require.ErrorContains(t, f.Sweep(t.Context()), "delete finished datauploads first: no answer")
	require.Equal(t, 2, tried, "a failure does not stop the rest of the sweep")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, f.Sweep(ctx), "the term has ended")
}

func TestASweepEndsWithItsTerm(t *testing.T) {
	f := newFixture(velerov1.BackupPhaseCompleted, "first", "second")
	f.Pause = func(context.Context) bool { return false }
	require.NoError(t, f.Sweep(t.Context()))
	require.Equal(t, []string{"first"}, f.deleted)
}
