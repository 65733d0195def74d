package verify

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/exposer/api"
)

const (
	namespace = "velero"
	nightly   = "nightly"
	gib       = 1 << 30
)

func object(version, kind, name string, spec, status map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": version, "kind": kind, "spec": spec, "status": status,
		"metadata": map[string]any{"name": name, "namespace": namespace, "uid": "uid-of-" + name, "labels": map[string]any{velerov1.BackupNameLabel: nightly}},
	}}
}

func backup(phase string) *unstructured.Unstructured {
	return object("velero.io/v1", "Backup", nightly, map[string]any{}, map[string]any{"phase": phase})
}

func backedUp(count int64) map[string]any {
	return map[string]any{"phase": "Completed", "snapshotID": "snapshot", "progress": map[string]any{"totalBytes": count, "bytesDone": count}}
}

func upload(name, claim string, status map[string]any) *unstructured.Unstructured {
	return object("velero.io/v2alpha1", "DataUpload", name, map[string]any{
		"sourceNamespace": "app", "sourcePVC": claim, "backupStorageLocation": "default", "operationTimeout": "10m0s",
		"snapshotType": "CSI", "csiSnapshot": map[string]any{"storageClass": "fast"},
	}, status)
}

func podVolumeBackup(uploader string, status map[string]any) *unstructured.Unstructured {
	return object("velero.io/v1", "PodVolumeBackup", "files", map[string]any{
		"pod": map[string]any{"namespace": "app", "name": "db-0"}, "volume": "logs", "node": "n1", "backupStorageLocation": "default", "uploaderType": uploader,
	}, status)
}

// cluster has agents that restore as the test says.
type cluster struct {
	*dynamicfake.FakeDynamicClient
	kube    *kubefake.Clientset
	agents  func(download *unstructured.Unstructured) // sets the status at the end of the restore
	created []*unstructured.Unstructured              // DataDownloads
	most    int                                       // DataDownloads at the same time
	answer  string
}

func newCluster(objects ...runtime.Object) *cluster {
	kinds := map[schema.GroupVersionResource]string{velerov1.SchemeGroupVersion.WithResource("backups"): "BackupList"}
	for _, kind := range api.Kinds() {
		kinds[kind.GVR()] = kind.GVK.Kind + "List"
	}
	c := &cluster{
		FakeDynamicClient: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, objects...),
		kube: kubefake.NewClientset(
			&corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data"},
				Spec:       corev1.PersistentVolumeClaimSpec{VolumeMode: new(corev1.PersistentVolumeBlock), StorageClassName: new("other")},
				Status:     corev1.PersistentVolumeClaimStatus{Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}},
			},
			storageClass("standard", "csi.example.com", "true"), storageClass("fast", "csi.example.com", ""), storageClass("static", "kubernetes.io/no-provisioner", ""),
		),
		agents: restores(3 * gib), answer: "y",
	}
	c.PrependReactor("create", "datadownloads", func(action clienttesting.Action) (bool, runtime.Object, error) {
		download := action.(clienttesting.CreateAction).GetObject().(*unstructured.Unstructured)
		c.agents(download)
		c.created = append(c.created, download)
		err := c.Tracker().Create(action.GetResource(), download, namespace)
		c.most = max(c.most, len(c.downloads()))
		return true, download, err
	})
	return c
}

func storageClass(name, provisioner, standard string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": standard}}, Provisioner: provisioner,
	}
}

// restores returns agents that restore so many bytes.
func restores(count int64) func(*unstructured.Unstructured) {
	return func(download *unstructured.Unstructured) { download.Object["status"] = backedUp(count) }
}

// ends returns agents that end a restore in a phase.
func ends(phase string) func(*unstructured.Unstructured) {
	return func(download *unstructured.Unstructured) {
		download.Object["status"] = map[string]any{"phase": phase, "message": "no space left on device"}
	}
}

// downloads returns the DataDownloads that are not deleted.
func (c *cluster) downloads() []unstructured.Unstructured {
	kind := api.DataDownload()
	list, err := c.Tracker().List(kind.GVR(), kind.GVK, namespace)
	if err != nil {
		panic(err)
	}
	return list.(*unstructured.UnstructuredList).Items
}

// run runs the command, one restore after the other.
func (c *cluster) run(ctx context.Context, change func(*options)) (printed string, output *Output, err error) {
	var out bytes.Buffer
	how := options{prompt: cli.Prompt{In: strings.NewReader(c.answer + "\n"), Out: &out}, parallel: 1, timeout: time.Hour}
	if change != nil {
		change(&how)
	}
	client := &cli.Client{Kube: c.kube, Dynamic: c, Namespace: namespace, Out: &out}
	output, err = (&verification{Client: client, backup: nightly}).run(ctx, how)
	return out.String(), output, err
}

func TestAllVolumesAreRestoredAndDeleted(t *testing.T) {
	c := newCluster(backup("PartiallyFailed"), upload("up-1", "data", backedUp(3*gib)), upload("up-2", "gone", map[string]any{"phase": "Completed", "message": "volume was empty so no data was upload"}), podVolumeBackup("kopia", backedUp(3*gib)))
	printed, output, err := c.run(t.Context(), nil)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(printed, `KIND             NAME   VOLUME         BYTES  SCRATCH CLAIM
DataUpload       up-1   app/data       3.0Gi  5Gi of storage class fast
DataUpload       up-2   app/gone       0B     none: the volume was empty
PodVolumeBackup  files  app/db-0/logs  3.0Gi  5Gi of storage class standard
Restore 2 volumes into scratch claims in namespace velero, 1 at the same time? [y/N] 
`), printed)
	require.Contains(t, printed, "DataUpload up-1: Verified, 3.0Gi restored\n")
	require.True(t, strings.HasSuffix(printed, "Backup nightly: all volumes are verified: 2 restored, 1 empty\n"), printed)
	require.Equal(t, []Volume{
		{Kind: "DataUpload", Name: "up-1", Volume: "app/data", Bytes: 3 * gib, Restored: 3 * gib, Result: Verified},
		{Kind: "DataUpload", Name: "up-2", Volume: "app/gone", Result: Empty},
		{Kind: "PodVolumeBackup", Name: "files", Volume: "app/db-0/logs", Bytes: 3 * gib, Restored: 3 * gib, Result: Verified},
	}, output.Volumes)
	require.Empty(t, c.downloads())
	require.Equal(t, 1, c.most)
}

func TestAScratchClaimIsLikeTheClaimThatWasBackedUp(t *testing.T) {
	c := newCluster(backup("Completed"), upload("up", "data", backedUp(3*gib)))
	_, _, err := c.run(t.Context(), nil)
	require.NoError(t, err)
	download := c.created[0]
	require.Equal(t, map[string]any{
		"targetVolume": map[string]any{"namespace": namespace, "pvc": download.GetName() + "-scratch", "pv": ""}, "backupStorageLocation": "default",
		"snapshotID": "snapshot", "sourceNamespace": "app", "operationTimeout": "10m0s", "snapshotSize": int64(3 * gib),
	}, download.Object["spec"])
	require.Equal(t, "Backup", download.GetOwnerReferences()[0].Kind)
	claim, err := c.kube.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), download.GetName()+"-scratch", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, download.GetName(), claim.OwnerReferences[0].Name)
	require.Equal(t, map[string]string{"lateen.dev/verify": nightly, "velero.io/exclude-from-backup": "true"}, claim.Labels)
	require.Contains(t, claim.Spec.Selector.MatchLabels, "velero.io/dynamic-pv-restore")
	require.Equal(t, "fast", *claim.Spec.StorageClassName)
	require.Equal(t, corev1.PersistentVolumeBlock, *claim.Spec.VolumeMode)
	require.Equal(t, "5Gi", claim.Spec.Resources.Requests.Storage().String())
}

// A claim that was deleted, or created again with a smaller size, does not say how large its volume was.
func TestAScratchClaimIsLargeEnough(t *testing.T) {
	for name, test := range map[string]struct {
		claim string
		bytes int64
		mover string
		want  string
	}{
		"the claim is gone":       {"gone", 10 * gib, "", "13Gi"},
		"few bytes":               {"gone", 1, "", "1Gi"},
		"the claim is smaller":    {"data", 10 * gib, "", "13Gi"},
		"as large as the device":  {"data", 5 * gib, "", "5Gi"},
		"a full file system":      {"files", 5*gib - 1, "", "7Gi"},
		"its device":              {"files", 5 * gib, "velero-block", "5Gi"},
		"a file system with room": {"files", 4 * gib, "", "5Gi"},
		"a claim that is not yet": {"pending", 0, "", "1Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			up := upload("up", test.claim, backedUp(test.bytes))
			require.NoError(t, unstructured.SetNestedField(up.Object, test.mover, "spec", "datamover"))
			c := newCluster(backup("Completed"), up)
			for _, each := range []*corev1.PersistentVolumeClaim{claim("files", "5Gi"), claim("pending", "0")} {
				require.NoError(t, c.kube.Tracker().Add(each))
			}
			printed, _, err := c.run(t.Context(), func(how *options) { how.dryRun, how.class = true, "standard" })
			require.NoError(t, err)
			require.Contains(t, printed, test.want+" of storage class standard\n")
			require.Empty(t, c.created)
		})
	}
}

func claim(name, capacity string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name},
		Status:     corev1.PersistentVolumeClaimStatus{Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(capacity)}},
	}
}

// A claim of a class without a provisioner could get a volume of an administrator.
func TestAScratchClaimNeedsAProvisioner(t *testing.T) {
	for class, want := range map[string]string{"static": "storage class static has no provisioner; add --storage-class", "none": "storage class none does not exist; add --storage-class"} {
		c := newCluster(backup("Completed"), upload("up", "data", backedUp(1)))
		_, output, err := c.run(t.Context(), func(how *options) { how.class = class })
		require.ErrorContains(t, err, "1 unsupported")
		require.Equal(t, want, output.Volumes[0].Message)
		require.Empty(t, c.created)
	}
	without := claim("static", "1Gi")
	without.Spec.StorageClassName = new("")
	files := podVolumeBackup("kopia", backedUp(1))
	files.SetAnnotations(map[string]string{"velero.io/pvc-name": "static"})
	c := newCluster(backup("Completed"), files)
	require.NoError(t, c.kube.Tracker().Add(without))
	printed, _, err := c.run(t.Context(), nil)
	require.NoError(t, err)
	require.Contains(t, printed, "1Gi of storage class standard\n")
}

func TestAVolumeThatIsNotVerifiedFailsTheCommand(t *testing.T) {
	for name, test := range map[string]struct {
		transfer *unstructured.Unstructured
		prepare  func(*cluster)
		want     Result
		message  string
	}{
		"the restore fails":       {upload("up", "data", backedUp(1)), func(c *cluster) { c.agents = ends("Failed") }, Failed, "is Failed: no space left on device"},
		"the restore is canceled": {upload("up", "data", backedUp(1)), func(c *cluster) { c.agents = ends("Canceled") }, Failed, "is Canceled: "},
		"no agent":                {upload("up", "data", backedUp(1)), func(c *cluster) { c.agents = ends("Accepted") }, Failed, "wait while it is Accepted: context deadline exceeded"},
		"not backed up":           {upload("up", "data", map[string]any{"phase": "Failed"}), nil, Failed, "not backed up: its phase is Failed"},
		"no snapshot":             {upload("up", "data", map[string]any{"phase": "Completed"}), nil, Failed, "not backed up: it is Completed without a snapshot"},
		"another uploader":        {podVolumeBackup("restic", backedUp(1)), nil, Unsupported, "restic"},
		"no storage class": {podVolumeBackup("kopia", backedUp(1)), func(c *cluster) {
			require.NoError(t, c.kube.Tracker().Delete(storagev1.SchemeGroupVersion.WithResource("storageclasses"), "", "standard"))
		}, Unsupported, "none is the default; add --storage-class"},
		"a refused claim": {upload("up", "data", backedUp(1)), func(c *cluster) {
			c.kube.PrependReactor("create", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("exceeded quota")
			})
		}, Failed, "create its scratch claim: exceeded quota"},
		"a refused DataDownload": {upload("up", "data", backedUp(1)), func(c *cluster) {
			c.PrependReactor("create", "datadownloads", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
		}, Failed, "create it: forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the time of a command that waits passes at once
				c := newCluster(backup("Completed"), test.transfer)
				if test.prepare != nil {
					test.prepare(c)
				}
				_, output, err := c.run(t.Context(), nil)
				require.ErrorContains(t, err, "verify Backup nightly: 0 volumes are verified, ")
				require.Equal(t, test.want, output.Volumes[0].Result)
				require.Contains(t, output.Volumes[0].Message, test.message)
				require.Empty(t, c.downloads())
			})
		})
	}
}

func TestAnotherDataMoverIsNotUsed(t *testing.T) {
	foreign := upload("up", "data", backedUp(1))
	require.NoError(t, unstructured.SetNestedField(foreign.Object, "acme", "spec", "datamover"))
	c := newCluster(backup("Completed"), foreign)
	_, output, err := c.run(t.Context(), nil)
	require.ErrorContains(t, err, "1 unsupported")
	require.Equal(t, "data mover acme is not one of Velero's", output.Volumes[0].Message)
	require.Empty(t, c.created)
}

// Kopia counts the links of an incremental backup, and none of a restore.
func TestTheNumberOfBytesMayDiffer(t *testing.T) {
	c := newCluster(backup("Completed"), upload("up", "data", backedUp(1011)))
	c.agents = restores(1000)
	_, output, err := c.run(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, Volume{Kind: "DataUpload", Name: "up", Volume: "app/data", Bytes: 1011, Restored: 1000, Result: Verified}, output.Volumes[0])
}

func TestVolumesWithoutADataUploadAreNotVerified(t *testing.T) {
	moved := backup("Completed")
	moved.Object["status"] = map[string]any{"phase": "Completed", "backupItemOperationsAttempted": int64(2), "volumeSnapshotsAttempted": int64(1)}
	c := newCluster(moved, upload("up", "data", backedUp(1)), podVolumeBackup("kopia", backedUp(1)))
	printed, _, err := c.run(t.Context(), nil)
	require.ErrorContains(t, err, "verify Backup nightly: 2 volumes are verified, 0 failed, 0 unsupported, 0 not restored, 2 without a DataUpload")
	require.Contains(t, printed, "Up to 2 more volumes have no DataUpload in this cluster, and are not verified.")
	_, _, err = newCluster(moved).run(t.Context(), nil)
	require.ErrorContains(t, err, "3 without a DataUpload")
}

// An error may be that of a volume that has no transfer.
func TestABackupWithErrorsIsNotVerified(t *testing.T) {
	partial := backup("PartiallyFailed")
	partial.Object["status"] = map[string]any{"phase": "PartiallyFailed", "errors": int64(1)}
	printed, output, err := newCluster(partial, upload("up", "data", backedUp(1))).run(t.Context(), nil)
	require.ErrorContains(t, err, "verify Backup nightly: 1 volumes are verified, 0 failed, 0 unsupported, 0 not restored, 0 without a DataUpload; the backup has 1 errors, ")
	require.Equal(t, Verified, output.Volumes[0].Result)
	require.NotContains(t, printed, "all volumes are verified")
}

func TestWhatCannotBeDeletedFailsTheCommand(t *testing.T) {
	c := newCluster(backup("Completed"), upload("up", "data", backedUp(1)))
	c.PrependReactor("delete", "datadownloads", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
	printed, output, err := c.run(t.Context(), nil)
	require.ErrorContains(t, err, "delete DataDownload up-verify-")
	require.Equal(t, Verified, output.Volumes[0].Result)
	require.Contains(t, printed, "all volumes are verified: 1 restored, 0 empty")
}

// A request whose answer is lost has created the DataDownload.
func TestADownloadWhoseCreationSeemsToFailIsDeleted(t *testing.T) {
	c := newCluster(backup("Completed"), upload("up", "data", backedUp(1)))
	c.PrependReactor("create", "datadownloads", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.Join(errors.New("connection reset"), c.Tracker().Create(action.GetResource(), action.(clienttesting.CreateAction).GetObject(), namespace))
	})
	_, _, err := c.run(t.Context(), nil)
	require.Error(t, err)
	require.Empty(t, c.downloads())
}

func TestVolumesAreRestoredInParallel(t *testing.T) {
	c := newCluster(backup("Completed"), upload("up-1", "data", backedUp(1)), upload("up-2", "data", backedUp(1)), upload("up-3", "data", backedUp(1)))
	c.agents = func(download *unstructured.Unstructured) {
		if len(c.created) == 1 {
			first := c.created[0].DeepCopy()
			first.Object["status"] = backedUp(1)
			go func() { // the first one ends after the second one has begun
				_ = c.Tracker().Update(api.DataDownload().GVR(), first, namespace) // a failure shows in the output
			}()
		}
		if len(c.created) > 0 {
			download.Object["status"] = backedUp(1)
		}
	}
	_, output, err := c.run(t.Context(), func(how *options) { how.parallel = 2 })
	require.NoError(t, err)
	require.Len(t, output.Volumes, 3)
	require.Equal(t, 2, c.most)
}

func TestAnInterruptDeletesWhatIsBeingRestored(t *testing.T) {
	c := newCluster(backup("Completed"), upload("up-1", "data", backedUp(1)), upload("up-2", "data", backedUp(1)))
	ctx, interrupt := context.WithCancel(t.Context())
	c.agents = func(*unstructured.Unstructured) { interrupt() }
	_, output, err := c.run(ctx, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "0 volumes are verified, 1 failed, 0 unsupported, 1 not restored")
	require.Equal(t, []Result{Failed, Pending}, []Result{output.Volumes[0].Result, output.Volumes[1].Result})
	require.Len(t, c.created, 1)
	require.Empty(t, c.downloads())
}

func TestADownloadThatSomebodyDeletesIsNotVerified(t *testing.T) {
	remove := func(c *cluster, action clienttesting.Action) error {
		return c.Tracker().Delete(action.GetResource(), namespace, c.created[0].GetName())
	}
	for name, prepare := range map[string]func(*cluster){
		"before the list": func(c *cluster) {
			c.PrependReactor("list", "datadownloads", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return false, nil, remove(c, action)
			})
		},
		"while it is watched": func(c *cluster) {
			c.PrependWatchReactor("datadownloads", func(action clienttesting.Action) (bool, watch.Interface, error) {
				changes, err := c.Tracker().Watch(action.GetResource(), namespace)
				return true, changes, errors.Join(err, remove(c, action))
			})
		},
	} {
		c := newCluster(backup("Completed"), upload("up", "data", backedUp(1)))
		c.agents = ends("Accepted")
		prepare(c)
		_, output, err := c.run(t.Context(), nil)
		require.Error(t, err, name)
		require.Contains(t, output.Volumes[0].Message, "it was deleted")
	}
}

func TestNothingIsRestoredWithoutAYes(t *testing.T) {
	c := newCluster(backup("Completed"), upload("up", "data", backedUp(1)))
	c.answer = "n"
	_, output, err := c.run(t.Context(), nil)
	require.EqualError(t, err, "verify Backup nightly: not confirmed, nothing restored")
	require.Equal(t, Pending, output.Volumes[0].Result)
	require.Empty(t, c.created)
}

func TestABackupThatCannotBeVerifiedIsNamed(t *testing.T) {
	failed := backup("Failed")
	failed.Object["status"] = map[string]any{"phase": "Failed", "failureReason": "no room"}
	for want, objects := range map[string][]runtime.Object{
		"Backup nightly does not exist in namespace velero":                          nil,
		"Backup nightly is InProgress: only a Backup that has ended can be verified": {backup("InProgress"), upload("up", "data", backedUp(1))},
		"Backup nightly is New: only a Backup that has ended can be verified":        {backup("")},
		"Backup nightly is Failed, so it cannot be verified: no room":                {failed, upload("up", "data", backedUp(1))},
		"Backup nightly has no data of volumes":                                      {backup("Completed")},
	} {
		_, _, err := newCluster(objects...).run(t.Context(), nil)
		require.ErrorContains(t, err, want)
	}
}
