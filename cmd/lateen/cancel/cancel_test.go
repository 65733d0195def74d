package cancel

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/exposer/api"
)

const backup = "nightly"

func backups() schema.GroupVersionResource {
	return velerov1.SchemeGroupVersion.WithResource("backups")
}

func objectOf(apiVersion, kind, name, phase string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name, "namespace": "velero"},
		"spec": map[string]any{}, "status": map[string]any{"phase": phase},
	}}
}

func ofBackup(kind api.Kind, name, phase string) *unstructured.Unstructured {
	version, of := kind.GVK.ToAPIVersionAndKind()
	object := objectOf(version, of, name, phase)
	object.SetLabels(map[string]string{velerov1.BackupNameLabel: backup})
	object.Object["spec"] = map[string]any{"sourceNamespace": "app", "sourcePVC": "data", "node": "node-1", "volume": "data", "pod": map[string]any{"namespace": "app", "name": "db-0"}}
	return object
}

// velero is a cluster whose agents end transfers as soon as their cancel is requested.
type velero struct {
	*dynamicfake.FakeDynamicClient
	answer   string   // to the question
	ends     string   // the phase in which agents end a transfer; empty: none runs
	canceled []string // names of transfers, in order
}

func newVelero(objects ...runtime.Object) *velero {
	kinds := map[schema.GroupVersionResource]string{backups(): "BackupList", velerov1.SchemeGroupVersion.WithResource("restores"): "RestoreList"}
	for _, kind := range api.Kinds() {
		kinds[kind.GVR()] = kind.GVK.Kind + "List"
	}
	v := &velero{FakeDynamicClient: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...), answer: "y", ends: "Canceled"}
	v.PrependReactor("patch", "*", v.patch)
	return v
}

func (v *velero) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	patch := action.(clienttesting.PatchAction)
	found, err := v.Tracker().Get(patch.GetResource(), patch.GetNamespace(), patch.GetName())
	if err != nil {
		return true, nil, err
	}
	v.canceled = append(v.canceled, patch.GetName())
	transfer := found.DeepCopyObject().(*unstructured.Unstructured)
	transfer.Object["spec"].(map[string]any)["cancel"] = true
	if v.ends != "" {
		transfer.Object["status"] = map[string]any{"phase": v.ends}
	}
	return true, transfer, v.Tracker().Update(patch.GetResource(), transfer, patch.GetNamespace())
}

// run runs the command. It returns what it prints for people and for programs.
func (v *velero) run(t *testing.T, of selection, change func(*options)) (string, *Output, error) {
	t.Helper()
	var out bytes.Buffer
	how := options{prompt: cli.Prompt{In: strings.NewReader(v.answer + "\n"), Out: &out}, wait: true, timeout: time.Hour}
	if change != nil {
		change(&how)
	}
	output, err := (&cancellation{Client: &cli.Client{Dynamic: v, Namespace: "velero", Out: &out}, selection: of}).run(t.Context(), how)
	return out.String(), output, err
}

func TestAllUnfinishedTransfersOfABackupAreCanceled(t *testing.T) {
	v := newVelero(objectOf("velero.io/v1", "Backup", backup, "WaitingForPluginOperations"), ofBackup(api.DataUpload(), "upload", "InProgress"),
		ofBackup(api.DataUpload(), "completed", "Completed"), ofBackup(api.PodVolumeBackup(), "files", ""))
	printed, output, err := v.run(t, backupNamed(backup), nil)
	require.NoError(t, err)
	require.Equal(t, `KIND             NAME    PHASE       NODE    VOLUME
PodVolumeBackup  files   New         node-1  app/db-0/data
DataUpload       upload  InProgress          app/data
Backup nightly is WaitingForPluginOperations. It continues without the data of these volumes, and ends PartiallyFailed.
Cancel them? [y/N] 
PodVolumeBackup files: cancel requested
DataUpload upload: cancel requested
`, printed[:strings.LastIndex(printed, "requested\n")+len("requested\n")])
	require.Contains(t, printed, "Canceled (2 of 2 ended)\n")
	require.True(t, strings.HasSuffix(printed, "All transfers have ended: 2 Canceled\n"), printed)
	require.Equal(t, []Transfer{
		{Kind: "PodVolumeBackup", Name: "files", Volume: "app/db-0/data", Node: "node-1", Phase: "Canceled", Cancel: true},
		{Kind: "DataUpload", Name: "upload", Volume: "app/data", Phase: "Canceled", Cancel: true},
	}, output.Transfers)
	again, _, err := v.run(t, backupNamed(backup), nil)
	require.NoError(t, err)
	require.Equal(t, "Backup nightly is WaitingForPluginOperations and has no unfinished transfer: nothing to cancel\n", again)
	require.Equal(t, []string{"files", "upload"}, v.canceled)
}

// TestTransfersThatVeleroAddsAreCanceledToo adds an upload once all watches are open, and then ends the phase in which Velero adds transfers.
func TestTransfersThatVeleroAddsAreCanceledToo(t *testing.T) {
	running := objectOf("velero.io/v1", "Backup", backup, "InProgress")
	v := newVelero(running)
	var watching sync.WaitGroup
	watching.Add(3)
	for _, resource := range []string{"backups", "podvolumebackups", "datauploads"} {
		var once sync.Once
		v.PrependWatchReactor(resource, func(action clienttesting.Action) (bool, watch.Interface, error) {
			watched, err := v.Tracker().Watch(action.GetResource(), action.GetNamespace())
			once.Do(watching.Done)
			return true, watched, err
		})
	}
	go func() {
		watching.Wait()
		late := ofBackup(api.DataUpload(), "late", "Accepted")
		_ = v.Tracker().Create(api.DataUpload().GVR(), late, "velero") // a failure shows in the output
		ended := running.DeepCopy()
		ended.Object["status"] = map[string]any{"phase": "WaitingForPluginOperations"}
		_ = v.Tracker().Update(backups(), ended, "velero")
	}()
	printed, output, err := v.run(t, backupNamed(backup), nil)
	require.NoError(t, err)
	require.Contains(t, printed, "Backup nightly is InProgress and has no unfinished transfer yet.\nTransfers that Velero adds to Backup nightly meanwhile are canceled too.\n")
	require.True(t, strings.HasSuffix(printed, "All transfers have ended: 1 Canceled\n"), printed)
	require.Len(t, output.Transfers, 1)
	require.Equal(t, []string{"late"}, v.canceled)
}

func TestATransferThatCompletesDespiteTheCancelIsNamed(t *testing.T) {
	v := newVelero(ofBackup(api.DataUpload(), "upload", "InProgress"))
	v.ends = "Completed"
	printed, output, err := v.run(t, namedTransfer(t, "du/upload"), nil)
	require.NoError(t, err)
	require.Contains(t, printed, "All transfers have ended: 1 Completed\n")
	require.Equal(t, "Completed", output.Transfers[0].Phase)
	printed, output, err = v.run(t, namedTransfer(t, "du/upload", "dataupload/upload"), nil)
	require.NoError(t, err)
	require.Equal(t, "DataUpload upload is Completed: nothing to cancel\n", printed)
	require.Len(t, output.Transfers, 1)
}

func namedTransfer(t *testing.T, names ...string) selection {
	t.Helper()
	selected, err := selectionOf("", "", names)
	require.NoError(t, err)
	return selected
}

func TestNothingIsCanceledWithoutAYes(t *testing.T) {
	v := newVelero(ofBackup(api.DataUpload(), "upload", "InProgress"))
	printed, _, err := v.run(t, namedTransfer(t, "du/upload"), func(how *options) { how.dryRun = true })
	require.NoError(t, err)
	require.NotContains(t, printed, "Cancel them?")
	v.answer = "n"
	_, _, err = v.run(t, namedTransfer(t, "du/upload"), nil)
	require.EqualError(t, err, "cancel transfers: not confirmed, nothing canceled")
	require.Empty(t, v.canceled)
}

func TestTheConsequencesOfACanceledRestoreAreNamed(t *testing.T) {
	label := map[string]string{velerov1.RestoreNameLabel: backup}
	files, volume := ofBackup(api.PodVolumeRestore(), "files", "InProgress"), ofBackup(api.DataDownload(), "volume", "InProgress")
	files.SetLabels(label)
	volume.SetLabels(label)
	v := newVelero(objectOf("velero.io/v1", "Restore", backup, "InProgress"), files, volume)
	printed, _, err := v.run(t, restoreNamed(backup), func(how *options) { how.wait = false })
	require.NoError(t, err)
	require.Contains(t, printed, "stays in its init container restore-wait: delete the pod.\n")
	require.Contains(t, printed, "A claim whose DataDownload is canceled stays Pending: delete the claim.\n")
	require.Contains(t, printed, "Velero may add transfers to Restore nightly: cancel again, or without --wait=false.\n")
	require.True(t, strings.HasSuffix(printed, "DataDownload volume: cancel requested\n"), printed)
}

func TestWhatPreventsACancelIsNamed(t *testing.T) {
	upload := ofBackup(api.DataUpload(), "upload", "InProgress")
	running := objectOf("velero.io/v1", "Backup", backup, "InProgress")
	for name, test := range map[string]struct {
		objects []runtime.Object
		of      selection
		prepare func(*velero)
		want    string
	}{
		"no such backup":   {nil, backupNamed("x"), nil, "Backup x does not exist in namespace velero"},
		"no such transfer": {nil, namedTransfer(t, "du/x"), nil, "DataUpload x does not exist in namespace velero"},
		"a refused patch": {[]runtime.Object{upload}, namedTransfer(t, "du/upload"), func(v *velero) {
			v.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(api.DataUpload().GVR().GroupResource(), "upload", nil)
			})
		}, `cancel DataUpload upload: datauploads.velero.io "upload" is forbidden`},
		"a definition of Velero 1.16": {[]runtime.Object{upload}, namedTransfer(t, "du/upload"), func(v *velero) {
			v.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, upload, nil })
		}, "cancel DataUpload upload: the API server dropped spec.cancel"},
		"no agent": {[]runtime.Object{upload}, namedTransfer(t, "du/upload"), func(v *velero) { v.ends = "" },
			"wait for transfers: context deadline exceeded; not ended: DataUpload upload (InProgress); lateen explain shows what they wait for"},
		"a backup that still adds transfers": {[]runtime.Object{running}, backupNamed(backup), nil,
			"wait for transfers: context deadline exceeded; Velero may add transfers to Backup nightly: cancel again"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the time of a command that waits passes at once
				v := newVelero(test.objects...)
				if test.prepare != nil {
					test.prepare(v)
				}
				_, _, err := v.run(t, test.of, nil)
				require.ErrorContains(t, err, test.want)
			})
		})
	}
}

// TestABackupThatIsDeletedAddsNoTransfer deletes it before the watch.
func TestABackupThatIsDeletedAddsNoTransfer(t *testing.T) {
	v := newVelero(objectOf("velero.io/v1", "Backup", backup, "InProgress"), ofBackup(api.DataUpload(), "upload", "InProgress"))
	v.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return false, nil, v.Tracker().Delete(backups(), "velero", backup)
	})
	printed, _, err := v.run(t, backupNamed(backup), nil)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(printed, "All transfers have ended: 1 Canceled\n"), printed)
}

// TestARequestThatFailsBesideOthersIsReported lets the request for the first of three new transfers fail.
func TestARequestThatFailsBesideOthersIsReported(t *testing.T) {
	v := newVelero(objectOf("velero.io/v1", "Backup", backup, "InProgress"))
	v.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch, _ := action.(clienttesting.PatchAction)
		return patch.GetName() == "a", nil, apierrors.NewInternalError(errors.New("no leader"))
	})
	lists := 0
	v.PrependReactor("list", "datauploads", func(clienttesting.Action) (bool, runtime.Object, error) {
		if lists++; lists == 2 { // that of the watch
			for _, name := range []string{"a", "b", "c"} {
				_ = v.Tracker().Add(ofBackup(api.DataUpload(), name, "Accepted"))
			}
		}
		return false, nil, nil
	})
	_, _, err := v.run(t, backupNamed(backup), nil)
	require.ErrorContains(t, err, "cancel DataUpload a: ")
}

// TestARequestIsRepeatedWhileTheAPIServerIsAway refuses the first request.
func TestARequestIsRepeatedWhileTheAPIServerIsAway(t *testing.T) {
	v := newVelero(ofBackup(api.DataUpload(), "upload", "InProgress"))
	requests := 0
	v.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		requests++
		return requests == 1, nil, apierrors.NewServiceUnavailable("starting")
	})
	_, _, err := v.run(t, namedTransfer(t, "du/upload"), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"upload"}, v.canceled)
}

// TestATransferThatIsDeletedHasEnded deletes it between the request and the watch.
func TestATransferThatIsDeletedHasEnded(t *testing.T) {
	v := newVelero(ofBackup(api.DataUpload(), "upload", "InProgress"))
	v.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		_, patched, err := v.patch(action)
		return true, patched, errors.Join(err, v.Tracker().Delete(action.GetResource(), action.GetNamespace(), "upload"))
	})
	printed, output, err := v.run(t, namedTransfer(t, "du/upload"), nil)
	require.NoError(t, err)
	require.Contains(t, printed, "All transfers have ended: 1 Deleted\n")
	require.Equal(t, deleted, output.Transfers[0].Phase)
}
