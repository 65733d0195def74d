package csi

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/csi/driver"
)

// Annotations of claims (Kubernetes' pkg/controller/volume/persistentvolume/util).
const (
	provisionerAnnotation  = "volume.kubernetes.io/storage-provisioner"
	selectedNodeAnnotation = "volume.kubernetes.io/selected-node"
)

const (
	// snapshotKind is the supported kind of data source.
	snapshotKind = "VolumeSnapshot"
	// modeChangeAnnotation on a content permits volumes with another mode (KEP-3141).
	modeChangeAnnotation = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
	// fstypeParameter of a class is the file system of its volumes (external-provisioner).
	fstypeParameter = "csi.storage.k8s.io/fstype"
	// DirAttribute is the CSI volume attribute with the directory of the volume's bytes.
	DirAttribute = "dir"
)

// WaitError is a reason not to provision until the claim or its snapshot changes.
type WaitError string

// Error returns the reason.
func (e WaitError) Error() string { return string(e) }

// syncClaim provisions a claim of this driver when it is ready for it.
func (d *Driver) syncClaim(ctx context.Context, namespace, name string) error {
	claim, err := d.caches.claims.PersistentVolumeClaims(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil || claim.Annotations[provisionerAnnotation] != d.options.Driver {
		return nil
	}
	class, err := d.caches.classes.Get(ptr.Deref(claim.Spec.StorageClassName, ""))
	if err != nil {
		return fmt.Errorf("get class of claim %s: %w", name, err)
	}
	late := ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer
	if late && claim.Annotations[selectedNodeAnnotation] == "" {
		return nil
	}
	err = d.provision(ctx, claim, class)
	if err != nil && ctx.Err() == nil {
		d.recorder.Eventf(claim, corev1.EventTypeWarning, "ProvisioningFailed",
			"failed to provision volume with StorageClass %q: %v", class.Name, err)
	}
	if waits := WaitError(""); errors.As(err, &waits) {
		return nil
	}
	return err
}

// provision creates the directory and the PersistentVolume with a reference to the claim. It is idempotent.
func (d *Driver) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	if claim.Spec.Selector != nil {
		return WaitError("claim Selector is not supported")
	}
	from, err := d.origin(claim)
	if err != nil {
		return err
	}
	d.recorder.Eventf(claim, corev1.EventTypeNormal, "Provisioning",
		"External provisioner is provisioning volume for claim %q", claim.Namespace+"/"+claim.Name)
	handle, err := d.createVolume(ctx, claim, class, from)
	if err != nil {
		return err
	}
	volume := d.persistentVolume(handle, claim, class)
	_, err = d.kube.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) { // roll back: no other component would remove the directory
		return errors.Join(fmt.Errorf("create PersistentVolume: %w", err), d.deleteVolume(ctx, handle, volume.Name))
	}
	if err == nil {
		d.recorder.Eventf(claim, corev1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume %s", volume.Name)
	}
	return nil
}

// createVolume calls the driver as external-provisioner does. A simulated node has no devices, so a block volume is a
// directory too.
func (d *Driver) createVolume(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, snapshot string,
) (handle string, err error) {
	request := &csi.CreateVolumeRequest{
		Name: "pvc-" + string(claim.UID), Parameters: class.Parameters,
		CapacityRange: &csi.CapacityRange{RequiredBytes: requestedBytes(claim)},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: class.Parameters[fstypeParameter]}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	}
	if snapshot != "" {
		request.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot},
		}}
	}
	call := Call{Verb: CreateVolume, Object: claim.Namespace + "/" + claim.Name}
	answer, err := driver.Serve(ctx, d.driver, call, func() (*csi.CreateVolumeResponse, error) { return d.driver.CreateVolume(ctx, request) })
	return answer.GetVolume().GetVolumeId(), err
}

// origin returns the handle of the claim's source snapshot; "" for an empty volume. It rejects what
// external-provisioner rejects.
func (d *Driver) origin(claim *corev1.PersistentVolumeClaim) (string, error) {
	source := claim.Spec.DataSource
	if source == nil {
		return "", nil
	}
	if source.Kind != snapshotKind {
		return "", WaitError(fmt.Sprintf("data source %s %s is not a VolumeSnapshot", source.Kind, source.Name))
	}
	snapshot, err := d.caches.snapshots.VolumeSnapshots(claim.Namespace).Get(source.Name)
	if err != nil {
		return "", WaitError(fmt.Sprintf("get snapshot %s: %v", source.Name, err))
	}
	status := snapshot.Status
	switch {
	case snapshot.DeletionTimestamp != nil:
		return "", WaitError(fmt.Sprintf("snapshot %s is being deleted", source.Name))
	case status == nil || !ptr.Deref(status.ReadyToUse, false) || status.BoundVolumeSnapshotContentName == nil:
		return "", WaitError(fmt.Sprintf("snapshot %s is not ready", source.Name))
	}
	content, err := d.caches.contents.Get(*status.BoundVolumeSnapshotContentName)
	if err != nil {
		return "", WaitError(fmt.Sprintf("get content of snapshot %s: %v", source.Name, err))
	}
	if err := d.unusable(content, snapshot, claim); err != nil {
		return "", fmt.Errorf("snapshot %s cannot be used: %w", source.Name, err)
	}
	return *content.Status.SnapshotHandle, nil
}

// unusable returns why a claim cannot be provisioned from a snapshot's content.
func (d *Driver) unusable(
	content *snapshotv1.VolumeSnapshotContent, snapshot *snapshotv1.VolumeSnapshot, claim *corev1.PersistentVolumeClaim,
) error {
	mode := ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	switch {
	case content.Spec.VolumeSnapshotRef.UID != snapshot.UID:
		return WaitError(fmt.Sprintf("content %s is another snapshot's", content.Name))
	case content.Spec.Driver != d.options.Driver:
		return WaitError(fmt.Sprintf("content %s is of driver %s", content.Name, content.Spec.Driver))
	case content.Status == nil || content.Status.SnapshotHandle == nil:
		return WaitError(fmt.Sprintf("content %s has no handle", content.Name))
	case ptr.Deref(content.Status.RestoreSize, 0) > requestedBytes(claim):
		return WaitError(fmt.Sprintf("%d bytes are less than the %d of the snapshot", requestedBytes(claim), *content.Status.RestoreSize))
	case ptr.Deref(content.Spec.SourceVolumeMode, mode) != mode && content.Annotations[modeChangeAnnotation] != "true":
		return WaitError(fmt.Sprintf("content %s does not permit another volume mode", content.Name))
	default:
		return nil
	}
}

// persistentVolume returns a volume as external-provisioner creates it.
func (d *Driver) persistentVolume(
	handle string, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass,
) *corev1.PersistentVolume {
	policy := ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-" + string(claim.UID), Annotations: map[string]string{provisionedByAnnotation: d.options.Driver},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:         corev1.ResourceList{corev1.ResourceStorage: requested(claim)},
			AccessModes:      claim.Spec.AccessModes,
			VolumeMode:       claim.Spec.VolumeMode,
			StorageClassName: class.Name, MountOptions: class.MountOptions, PersistentVolumeReclaimPolicy: policy,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name,
				UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: d.options.Driver, VolumeHandle: handle, FSType: class.Parameters[fstypeParameter],
				VolumeAttributes: map[string]string{DirAttribute: d.VolumeDir(handle)},
			}},
		},
	}
	if policy == corev1.PersistentVolumeReclaimDelete {
		volume.Finalizers = []string{volumeFinalizer}
	}
	return volume
}

func requested(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Spec.Resources.Requests[corev1.ResourceStorage]
}

func requestedBytes(claim *corev1.PersistentVolumeClaim) int64 {
	return claim.Spec.Resources.Requests.Storage().Value()
}
