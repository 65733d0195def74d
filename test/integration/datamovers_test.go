package integration

import (
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// dataKinds are those whose volumes are made for them.
func dataKinds() map[testenv.Kind]func(v *env) (name string, finished func(phase testenv.Phase) *testenv.Transfer) {
	return map[testenv.Kind]func(v *env) (string, func(testenv.Phase) *testenv.Transfer){
		testenv.DataUpload: func(v *env) (string, func(testenv.Phase) *testenv.Transfer) {
			name, handle := v.uploads("data")
			return name, func(phase testenv.Phase) *testenv.Transfer { return v.uploaded(name, handle, phase) }
		},
		testenv.DataDownload: func(v *env) (string, func(testenv.Phase) *testenv.Transfer) {
			name := v.download(v.target())
			return name, func(phase testenv.Phase) *testenv.Transfer { return v.settles(testenv.DataDownload, name, phase) }
		},
	}
}

func TestAMoverOfDataThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	for kind, begin := range dataKinds() {
		t.Run(string(kind), func(t *testing.T) {
			v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{})
			v.Movers.Result = &node.Result{ExitCode: 1, Message: "disk on fire"}
			v.start()
			name, finished := begin(v)
			require.Equal(t, "disk on fire (exit code 1)", finished(testenv.Failed).Status.Message)
			require.Equal(t, 1, v.moversMade(name))
			v.nothingLeft()
			v.noSnapshots()
			v.says("Failed", "disk on fire")
		})
	}
}

func TestAMoverOfDataThatIsLostStartsAgainWithTheSameVolume(t *testing.T) {
	t.Parallel()
	for kind, begin := range dataKinds() {
		for how, lose := range map[string]func(v *env, name string) error{
			"evicted": func(v *env, name string) error {
				return v.node.Evict(v.Namespace, name, "the node is low on memory")
			},
			"vanished": func(v *env, name string) error { return v.node.Vanish(v.soon(), v.Namespace, name) },
		} {
			t.Run(string(kind)+" "+how, func(t *testing.T) {
				v := newEnv(t, 0).volumes(csi.Options{})
				finish := v.work()
				v.start()
				name, finished := begin(v)
				v.reaches(kind, name, testenv.InProgress)
				before, err := v.WaitClaim(v.soon(), v.Namespace, name, testenv.Bound)
				require.NoError(t, err)
				require.NoError(t, lose(v, name))
				_, err = v.Transfers(kind).Wait(v.soon(), name, func(seen *testenv.Transfer) bool {
					return seen.Status.Phase == testenv.InProgress && seen.Annotations[api.AnnotationRestarts] == "1"
				})
				require.NoError(t, err)
				after, err := v.WaitClaim(v.soon(), v.Namespace, name, testenv.Bound)
				require.NoError(t, err)
				require.Equal(t, before.UID, after.UID)
				finish()
				ended := finished(testenv.Completed)
				require.Equal(t, "1", ended.Annotations[api.AnnotationRestarts])
				require.Equal(t, 2, v.moversMade(name))
			})
		}
	}
}

func TestASnapshotThatBelongsToTheSidecarOfANodeStaysThere(t *testing.T) {
	const managedBy = "snapshot.storage.kubernetes.io/managed-by"
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{ManagedBy: "far-node"})
	v.start()
	source := v.claim("data")
	taken, err := v.Snapshot(v.soon(), v.backup, source, v.storageClass)
	require.NoError(t, err)
	content := "snapcontent-" + string(taken.UID)
	_, err = v.WaitContent(v.soon(), content, func(*snapshotv1.VolumeSnapshotContent) bool { return true })
	require.NoError(t, err)
	label := `{"metadata":{"labels":{"` + managedBy + `":"far-node"}}}` // as a snapshot-controller with distributed snapshotting does
	_, err = v.Snapshots.SnapshotV1().VolumeSnapshotContents().Patch(v.soon(), content, types.MergePatchType, []byte(label), metav1.PatchOptions{})
	require.NoError(t, err)
	cut, err := v.WaitContent(v.soon(), content, func(c *snapshotv1.VolumeSnapshotContent) bool {
		return c.Status != nil && c.Status.SnapshotHandle != nil
	})
	require.NoError(t, err)
	name := v.upload(source, taken.Name)
	v.uploaded(name, *cut.Status.SnapshotHandle, testenv.Completed)
}

func TestAVolumeWhoseTargetGotAnotherOneIsKept(t *testing.T) {
	v := newEnv(t, 0).volumes(csi.Options{})
	finish := v.work()
	v.start()
	target := v.target()
	name := v.download(target)
	v.reaches(testenv.DataDownload, name, testenv.InProgress)
	_, err := v.Kube.CoreV1().PersistentVolumes().Create(v.soon(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "rival-of-" + v.Apps, Labels: target.Spec.Selector.MatchLabels},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: quantity("1Gi")}, AccessModes: target.Spec.AccessModes, StorageClassName: v.storageClass,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/rival"}},
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: v.Apps, Name: target.Name},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = v.Kube.CoreV1().PersistentVolumeClaims(v.Apps).Patch(v.soon(), target.Name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"looks":"again"}}}`), metav1.PatchOptions{}) // the volume controller does at a change of the claim
	require.NoError(t, err)
	_, err = v.WaitClaim(v.soon(), v.Apps, target.Name, testenv.Bound)
	require.NoError(t, err)
	finish()
	ended := v.settles(testenv.DataDownload, name, testenv.Failed)
	require.Contains(t, ended.Status.Message, "is already bound to PersistentVolume rival-of-"+v.Apps)
	require.Contains(t, ended.Status.Message, "kept as PersistentVolume pvc-")
	require.Len(t, v.Driver.Volumes(), 1)
}
