package csi_test

import (
	"context"
	"errors"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// snapshot creates a ready snapshot of a new claim that contains a tree.
func (s *env) snapshot(ctx context.Context, t *testing.T) (*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotContent) {
	t.Helper()
	claim, volume := s.claim(ctx, t, "data")
	plant(t, s.driver.VolumeDir(volume.Spec.CSI.VolumeHandle))
	backup, err := s.Backup(ctx, "nightly")
	require.NoError(t, err)
	created, err := s.Snapshot(ctx, backup, claim, s.name)
	require.NoError(t, err)
	created, err = s.WaitSnapshot(ctx, s.Apps, created.Name, testenv.ReadyToUse)
	require.NoError(t, err)
	content, err := s.contents().Get(ctx, *created.Status.BoundVolumeSnapshotContentName, metav1.GetOptions{})
	require.NoError(t, err)
	return created, content
}

type contentClient interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*snapshotv1.VolumeSnapshotContent, error)
	Create(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, opts metav1.CreateOptions) (*snapshotv1.VolumeSnapshotContent, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, opts metav1.PatchOptions, sub ...string) (*snapshotv1.VolumeSnapshotContent, error)
}

func (s *env) contents() contentClient { return s.Snapshots.SnapshotV1().VolumeSnapshotContents() }

func (s *env) deleteSnapshot(ctx context.Context, t *testing.T, namespace, name string) {
	t.Helper()
	require.NoError(t, s.Snapshots.SnapshotV1().VolumeSnapshots(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	require.NoError(t, s.WaitSnapshotGone(ctx, namespace, name))
}

// secondOwner gives the handle of a content to a second pair in Velero's namespace.
func (s *env) secondOwner(ctx context.Context, t *testing.T, handle string) {
	t.Helper()
	const name = "copy"
	_, err := s.contents().Create(ctx, &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: s.Namespace, Name: name}, Driver: s.driver.Name(),
			Source:         snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &handle},
			DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeSnapshotClassName: &s.name,
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = s.Snapshots.SnapshotV1().VolumeSnapshots(s.Namespace).Create(ctx, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &s.name}, VolumeSnapshotClassName: &s.name,
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = s.WaitSnapshot(ctx, s.Namespace, name, testenv.ReadyToUse)
	require.NoError(t, err)
}

func TestVolumeOfASnapshotIsAnExactCopyOfTheOneItWasTakenOf(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, csi.Options{})
	snapshot, content := s.snapshot(ctx, t)
	require.Equal(t, "1Gi", snapshot.Status.RestoreSize.String())
	handle := *content.Status.SnapshotHandle
	require.Equal(t, []string{handle}, s.driver.Handles())
	source := s.driver.VolumeDir(s.driver.Volumes()[0])
	same(ctx, t, source, s.driver.SnapshotDir(handle))

	_, clone := s.claim(ctx, t, "clone", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{
			APIGroup: ptr.To(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: snapshot.Name,
		}
	})
	same(ctx, t, source, s.driver.VolumeDir(clone.Spec.CSI.VolumeHandle))
}

func TestHandleIsDeletedOnceWithTheLastThatMayDeleteIt(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, csi.Options{})
	snapshot, content := s.snapshot(ctx, t)
	handle := *content.Status.SnapshotHandle
	s.secondOwner(ctx, t, handle)
	_, err := s.contents().Patch(ctx, content.Name, types.MergePatchType, []byte(`{"spec":{"deletionPolicy":"Retain"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	s.deleteSnapshot(ctx, t, s.Apps, snapshot.Name)
	require.Equal(t, []string{handle}, s.driver.Handles(), "a retained content took the handle with it")
	require.Zero(t, s.driver.Deletions(handle))

	s.deleteSnapshot(ctx, t, s.Namespace, "copy")
	require.NoError(t, s.WaitContentGone(ctx, s.name))
	require.Empty(t, s.driver.Handles())
	require.Equal(t, 1, s.driver.Deletions(handle))
}

func TestAFailedSnapshotIsReportedAndRetried(t *testing.T) {
	ctx := deadline(t)
	broken := make(chan struct{})
	s := newEnv(ctx, t, csi.Options{Fault: func(_ context.Context, call csi.Call) error {
		select {
		case <-broken:
			return nil
		default:
		}
		if call.Verb == csi.CreateSnapshot {
			return errors.New("no room for " + call.Handle)
		}
		return nil
	}})
	claim, _ := s.claim(ctx, t, "data")
	backup, err := s.Backup(ctx, "nightly")
	require.NoError(t, err)
	created, err := s.Snapshot(ctx, backup, claim, s.name)
	require.NoError(t, err)
	failed, err := s.WaitSnapshot(ctx, s.Apps, created.Name, func(snapshot *snapshotv1.VolumeSnapshot) bool {
		return snapshot.Status != nil && snapshot.Status.Error != nil
	})
	require.NoError(t, err)
	require.Contains(t, *failed.Status.Error.Message, "no room for snapshot-"+string(created.UID))
	close(broken)
	_, err = s.WaitSnapshot(ctx, s.Apps, created.Name, testenv.ReadyToUse)
	require.NoError(t, err)
}

func TestSnapshotThatNeverSucceedsCanBeDeleted(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, csi.Options{Fault: func(_ context.Context, call csi.Call) error {
		if call.Verb == csi.CreateSnapshot {
			return errors.New("no room")
		}
		return nil
	}})
	claim, _ := s.claim(ctx, t, "data")
	backup, err := s.Backup(ctx, "nightly")
	require.NoError(t, err)
	created, err := s.Snapshot(ctx, backup, claim, s.name)
	require.NoError(t, err)
	_, err = s.WaitSnapshot(ctx, s.Apps, created.Name, func(snapshot *snapshotv1.VolumeSnapshot) bool {
		return snapshot.Status != nil && snapshot.Status.Error != nil
	})
	require.NoError(t, err)
	s.deleteSnapshot(ctx, t, s.Apps, created.Name)
}
