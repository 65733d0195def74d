package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

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
func (c *caseRun) classes(ctx context.Context) error {
	mode := "Immediate"
	if c.testCase.Volume.Late {
		mode = "WaitForFirstConsumer"
	}
	named := map[string]any{"name": c.placeholders.of("CLASS")}
	snapshots := maps.Clone(named)
	if c.testCase.Volume.Grouped { // Velero's documentation requires a default
		snapshots["annotations"] = map[string]any{"snapshot.storage.kubernetes.io/is-default-class": "true"}
	}
	return errors.Join(
		apply(ctx, c.plane.Client, Object{
			"kind": "StorageClass", "metadata": named, "provisioner": c.testCase.driver(), "volumeBindingMode": mode, "reclaimPolicy": "Delete",
		}),
		apply(ctx, c.plane.Client, Object{
			"kind": "VolumeSnapshotClass", "metadata": snapshots, "driver": c.testCase.driver(), "deletionPolicy": map[bool]string{false: "Delete", true: "Retain"}[c.testCase.Volume.Retained],
		}))
}

func (c *caseRun) prepareDataUpload(ctx context.Context) error {
	claim, err := c.claim(ctx)
	if err != nil {
		return err
	}
	if err := c.FillClaim(ctx, claim); err != nil {
		return err
	}
	snapshot := Object{
		"kind": "VolumeSnapshot",
		"metadata": map[string]any{
			"namespace": c.Apps, "name": "snapshot", "labels": map[string]any{"velero.io/backup-name": "nightly"},
			"annotations": map[string]any{"example.com/from": "the-driver"},
		},
		"spec": map[string]any{
			"volumeSnapshotClassName": c.placeholders.of("CLASS"), "source": map[string]any{"persistentVolumeClaimName": claim.Name},
		},
	}
	if err := apply(ctx, c.plane.Client, snapshot); err != nil {
		return err
	}
	if !c.testCase.Volume.Unready {
		ready, err := c.WaitSnapshot(ctx, c.Apps, "snapshot", testenv.ReadyToUse)
		if err != nil {
			return err
		}
		bound, handle, err := c.Handle(ctx, ready)
		if err != nil {
			return err
		}
		c.placeholders.set("HANDLE", handle)
		if err := c.group(ctx, *bound.Status.BoundVolumeSnapshotContentName); err != nil {
			return err
		}
	}
	backup, err := c.Backup(ctx, "nightly")
	if err != nil {
		return err
	}
	spec := velerov2alpha1.CSISnapshotSpec{VolumeSnapshot: "snapshot", Driver: c.testCase.driver()}
	if !c.testCase.Volume.Grouped {
		spec.SnapshotClass = c.placeholders.of("CLASS")
	}
	c.create = func(ctx context.Context, alter func(metav1.Object)) (metav1.Object, error) {
		return c.DataUpload(ctx, backup, claim, spec, func(wanted *velerov2alpha1.DataUpload) { alter(wanted) })
	}
	return nil
}

// group makes the snapshot one of a group (external-snapshotter v8.7, groupsnapshot_controller_helper.go; velero#9034). It lacks
// status.volumeGroupSnapshotName, which the snapshot-controller reads only if it serves groups.
func (c *caseRun) group(ctx context.Context, content string) error {
	if !c.testCase.Volume.Grouped {
		return nil
	}
	snapshots, options := c.Snapshots.SnapshotV1(), metav1.PatchOptions{}
	patch := []byte(`{"metadata":{"annotations":{"groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle":"group"}},"spec":{"volumeSnapshotClassName":null}}`)
	_, err := snapshots.VolumeSnapshotContents().Patch(ctx, content, types.MergePatchType, patch, options)
	if err == nil {
		patch = []byte(`{"status":{"volumeGroupSnapshotHandle":"group"}}`)
		_, err = snapshots.VolumeSnapshotContents().Patch(ctx, content, types.MergePatchType, patch, options, "status")
	}
	if err == nil {
		_, err = snapshots.VolumeSnapshots(c.Apps).Patch(ctx, "snapshot", types.MergePatchType, []byte(`{"spec":{"volumeSnapshotClassName":null}}`), options)
	}
	return err
}

// claim makes the claim that is backed up, and returns it once it is bound; one that waits for a consumer gets one.
func (c *caseRun) claim(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
	if _, err := c.CSIClaim(ctx, "data", c.placeholders.of("CLASS"), c.testCase.Volume.setMode); err != nil {
		return nil, err
	}
	if c.testCase.Volume.Late {
		if _, err := c.SourcePod(ctx, "app", "", testenv.ClaimVolume("data", "data")); err != nil {
			return nil, err
		}
	}
	claim, err := c.WaitClaim(ctx, c.Apps, "data", testenv.Bound)
	if err != nil {
		return nil, err
	}
	c.placeholders.set("VOLUME", claim.Spec.VolumeName)
	return claim, nil
}

func (c *caseRun) prepareDataDownload(ctx context.Context) error {
	if c.testCase.Volume.Existing {
		if err := c.detach(ctx); err != nil {
			return err
		}
	}
	claim, err := c.TargetClaim(ctx, "data", c.placeholders.of("CLASS"), c.testCase.Volume.setMode)
	if err != nil {
		return err
	}
	restore, err := c.Restore(ctx, "nightly")
	if err != nil {
		return err
	}
	c.create = func(ctx context.Context, alter func(metav1.Object)) (metav1.Object, error) {
		return c.DataDownload(ctx, restore, claim, "a-snapshot", func(wanted *velerov2alpha1.DataDownload) { alter(wanted) })
	}
	return nil
}

// detach makes a volume without a claim, as Velero's server does before an in-place restore.
func (c *caseRun) detach(ctx context.Context) error {
	claim, err := c.claim(ctx)
	if err != nil {
		return err
	}
	if err := c.FillClaim(ctx, claim); err != nil {
		return err
	}
	retain := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	if _, err := c.Kube.CoreV1().PersistentVolumes().Patch(ctx, claim.Spec.VolumeName, types.MergePatchType, retain, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("retain volume: %w", err)
	}
	claims := c.Kube.CoreV1().PersistentVolumeClaims(c.Apps)
	if err := claims.Delete(ctx, claim.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete claim: %w", err)
	}
	return testenv.WaitGone(ctx, claims, testenv.Named(claim.Name))
}

// handles are the driver's names of all snapshots that there ever were in the namespaces of the run, for a check.
func (c *caseRun) handles() (all []string) {
	for _, life := range c.plane.History.in("VolumeSnapshotContent") {
		object := life.last()
		namespace, _, _ := unstructured.NestedString(object, "spec", "volumeSnapshotRef", "namespace")
		handle, _, _ := unstructured.NestedString(object, "status", "snapshotHandle")
		if handle != "" && (namespace == c.Namespace || namespace == c.Apps) && !slices.Contains(all, handle) {
			all = append(all, handle)
		}
	}
	return all
}

// snapshotsLeft names a snapshot that the driver still has, or was asked to delete more than once.
func (c *caseRun) snapshotsLeft() error {
	for _, driver := range c.plane.Drivers {
		kept := slices.ContainsFunc(c.testCase.Left, func(want Object) bool { return want["kind"] == "VolumeSnapshot" || c.testCase.Volume.Retained })
		for _, handle := range c.handles() {
			if slices.Contains(driver.Handles(), handle) && !kept {
				return errors.New("the driver still has the snapshot")
			}
			if times := driver.Deletions(handle); times > 1 || kept && times > 0 {
				return fmt.Errorf("the driver deleted the snapshot %d times", times)
			}
		}
	}
	return nil
}
