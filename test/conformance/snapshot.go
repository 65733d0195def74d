package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// slowDriver is the CSI driver whose snapshots do not get ready.
const slowDriver = "slow.example.com"

// driver is the name of the CSI driver that the case has.
func (c *Case) driver() string {
	if c.Volume.Unready {
		return slowDriver
	}
	return csi.DefaultDriver
}

// classes makes the storage class and the snapshot class of the run.
func (s *caseRun) classes(ctx context.Context) error {
	mode := "Immediate"
	if s.testCase.Volume.Late {
		mode = "WaitForFirstConsumer"
	}
	named := map[string]any{"name": s.placeholders.of("CLASS")}
	return errors.Join(
		apply(ctx, s.plane.Client, Object{
			"kind": "StorageClass", "metadata": named, "provisioner": s.testCase.driver(), "volumeBindingMode": mode, "reclaimPolicy": "Delete",
		}),
		apply(ctx, s.plane.Client, Object{
			"kind": "VolumeSnapshotClass", "metadata": named, "driver": s.testCase.driver(), "deletionPolicy": "Delete",
		}))
}

func (s *caseRun) prepareDataUpload(ctx context.Context) error {
	claim, err := s.claim(ctx)
	if err != nil {
		return err
	}
	if err := s.fillClaim(ctx, claim); err != nil {
		return err
	}
	snapshot := Object{
		"kind": "VolumeSnapshot",
		"metadata": map[string]any{
			"namespace": s.Apps, "name": "snapshot", "labels": map[string]any{"velero.io/backup-name": "nightly"},
			"annotations": map[string]any{"example.com/from": "the-driver"},
		},
		"spec": map[string]any{
			"volumeSnapshotClassName": s.placeholders.of("CLASS"), "source": map[string]any{"persistentVolumeClaimName": claim.Name},
		},
	}
	if err := apply(ctx, s.plane.Client, snapshot); err != nil {
		return err
	}
	if !s.testCase.Volume.Unready {
		ready := Object{
			"kind": "VolumeSnapshot", "metadata": map[string]any{"namespace": s.Apps, "name": "snapshot"},
			"status": map[string]any{"readyToUse": true},
		}
		err := s.plane.History.Until(ctx, func() error { return s.plane.History.now(ready, s.Apps) })
		if err != nil {
			return err
		}
		handle, err := s.handle(ctx)
		if err != nil {
			return err
		}
		s.placeholders.set("HANDLE", handle)
	}
	backup, err := s.backup(ctx)
	if err != nil {
		return err
	}
	spec := velerov2alpha1.CSISnapshotSpec{
		VolumeSnapshot: "snapshot", SnapshotClass: s.placeholders.of("CLASS"), Driver: s.testCase.driver(),
	}
	s.create = func(ctx context.Context, alter func(metav1.Object) error) (metav1.Object, error) {
		var unread error
		created, err := s.DataUpload(ctx, backup, claim, spec, func(wanted *velerov2alpha1.DataUpload) { unread = alter(wanted) })
		return created, firstError(unread, err)
	}
	return nil
}

// claim makes the claim that is backed up, and returns it once it is bound; one that waits for a consumer gets one.
func (s *caseRun) claim(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
	mode := "Filesystem"
	if s.testCase.Volume.Block {
		mode = "Block"
	}
	err := apply(ctx, s.plane.Client, Object{
		"kind": "PersistentVolumeClaim", "metadata": map[string]any{"namespace": s.Apps, "name": "data"},
		"spec": map[string]any{
			"storageClassName": s.placeholders.of("CLASS"), "volumeMode": mode, "accessModes": []any{"ReadWriteOnce"},
			"resources": map[string]any{"requests": map[string]any{"storage": "1Gi"}},
		},
	})
	if err != nil {
		return nil, err
	}
	if s.testCase.Volume.Late {
		if _, err := s.SourcePod(ctx, "app", "", testenv.ClaimVolume("data", "data")); err != nil {
			return nil, err
		}
	}
	bound := Object{
		"kind": "PersistentVolumeClaim", "metadata": map[string]any{"namespace": s.Apps, "name": "data"},
		"status": map[string]any{"phase": "Bound"},
	}
	if err := s.plane.History.Until(ctx, func() error { return s.plane.History.now(bound, s.Apps) }); err != nil {
		return nil, err
	}
	claim, err := s.Kube.CoreV1().PersistentVolumeClaims(s.Apps).Get(ctx, "data", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get claim: %w", err)
	}
	s.placeholders.set("VOLUME", claim.Spec.VolumeName)
	return claim, nil
}

func (s *caseRun) prepareDataDownload(ctx context.Context) error {
	block := func(claim *corev1.PersistentVolumeClaim) {
		if s.testCase.Volume.Block {
			claim.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
		}
	}
	claim, err := s.TargetClaim(ctx, "data", s.placeholders.of("CLASS"), block)
	if err != nil {
		return err
	}
	restore, err := s.restore(ctx)
	if err != nil {
		return err
	}
	s.create = func(ctx context.Context, alter func(metav1.Object) error) (metav1.Object, error) {
		var unread error
		created, err := s.DataDownload(ctx, restore, claim, "a-snapshot", func(wanted *velerov2alpha1.DataDownload) { unread = alter(wanted) })
		return created, firstError(unread, err)
	}
	return nil
}

// handle waits until the content of the only snapshot tells the driver's name of it: it may do so after the snapshot.
func (s *caseRun) handle(ctx context.Context) (handle string, err error) {
	err = s.plane.History.Until(ctx, func() error {
		all := s.handles()
		if len(all) == 0 {
			return errors.New("the snapshot has no handle")
		}
		handle = all[0]
		return nil
	})
	return handle, err
}

// handles are the driver's names of all snapshots that there ever were in the namespaces of the run, for a check.
func (s *caseRun) handles() (all []string) {
	for _, life := range s.plane.History.in("VolumeSnapshotContent") {
		object := life.last()
		namespace, _, _ := unstructured.NestedString(object, "spec", "volumeSnapshotRef", "namespace")
		handle, _, _ := unstructured.NestedString(object, "status", "snapshotHandle")
		if handle != "" && (namespace == s.Namespace || namespace == s.Apps) && !slices.Contains(all, handle) {
			all = append(all, handle)
		}
	}
	return all
}

// snapshotsLeft names a snapshot that the driver still has, or was asked to delete more than once.
func (s *caseRun) snapshotsLeft() error {
	for _, driver := range s.plane.Drivers {
		for _, handle := range s.handles() {
			if slices.Contains(driver.Handles(), handle) && !s.keepsSnapshot() {
				return errors.New("the driver still has the snapshot")
			}
			if times := driver.Deletions(handle); times > 1 {
				return fmt.Errorf("the driver deleted the snapshot %d times", times)
			}
		}
	}
	return nil
}

// keepsSnapshot says that the case wants a snapshot to be left.
func (s *caseRun) keepsSnapshot() bool {
	return slices.ContainsFunc(s.testCase.Left, func(want Object) bool { return want["kind"] == "VolumeSnapshot" })
}
