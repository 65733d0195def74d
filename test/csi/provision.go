package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/csi/driver"
)

const (
	// snapshotKind is the supported kind of data source.
	snapshotKind = "VolumeSnapshot"
	// modeChangeAnnotation on a content permits volumes with another mode (KEP-3141).
	modeChangeAnnotation = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
	// fstypeParameter of a class is the file system of its volumes (external-provisioner).
	fstypeParameter = "csi.storage.k8s.io/fstype"
	// dirAttribute is the CSI volume attribute with the directory of the volume's bytes.
	dirAttribute = "dir"
	// provisionedByAnnotation on a volume is the driver that made it.
	provisionedByAnnotation = "pv.kubernetes.io/provisioned-by"
	// volumeFinalizer keeps a PersistentVolume until the driver has deleted its bytes.
	volumeFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"
	// Both annotations are set on a claim: the driver by the volume controller, the node by the scheduler.
	driverAnnotation = "volume.kubernetes.io/storage-provisioner"
	nodeAnnotation   = "volume.kubernetes.io/selected-node"
)

// provisioner reconciles claims and volumes as the sidecar csi-provisioner does. It is not made with the library of that sidecar: each
// controller of the library registers types in client-go's global scheme, which other goroutines of a test read.
type provisioner struct {
	*Driver

	events  record.EventRecorder
	volumes cache.Store
}

func volumeName(claim *corev1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// syncClaim creates the volume of a claim that the volume controller has assigned to the driver.
func (p *provisioner) syncClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, exists, err := p.volumes.GetByKey(volumeName(claim))
	if err != nil || exists || claim.Spec.VolumeName != "" || claim.Annotations[driverAnnotation] != p.options.Name {
		return err
	}
	class, err := p.kube.StorageV1().StorageClasses().Get(ctx, ptr.Deref(claim.Spec.StorageClassName, ""), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get StorageClass: %w", err)
	}
	late := ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer
	if late && claim.Annotations[nodeAnnotation] == "" {
		return nil
	}
	p.events.Eventf(claim, corev1.EventTypeNormal, "Provisioning", "provisioning a volume for claim %s/%s", claim.Namespace, claim.Name)
	volume, err := p.provision(ctx, claim, class)
	if err != nil {
		err = fmt.Errorf("failed to provision volume with StorageClass %q: %w", class.Name, err)
		p.events.Event(claim, corev1.EventTypeWarning, "ProvisioningFailed", err.Error())
		return err
	}
	if _, err := p.kube.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create volume: %w", err)
	}
	p.events.Event(claim, corev1.EventTypeNormal, "ProvisioningSucceeded", "provisioned volume "+volume.Name)
	return nil
}

// syncVolume deletes a volume whose claim is gone, if its policy says so. The finalizer goes after the bytes.
func (p *provisioner) syncVolume(ctx context.Context, volume *corev1.PersistentVolume) error {
	switch source := volume.Spec.CSI; {
	case source == nil || source.Driver != p.options.Name:
		return nil
	case volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		return p.setFinalizer(ctx, volume, false)
	case volume.Status.Phase == corev1.VolumeBound && volume.DeletionTimestamp == nil:
		return p.setFinalizer(ctx, volume, true)
	case volume.Status.Phase != corev1.VolumeReleased || volume.DeletionTimestamp != nil && !slices.Contains(volume.Finalizers, volumeFinalizer):
		return nil
	}
	request := &csi.DeleteVolumeRequest{VolumeId: volume.Spec.CSI.VolumeHandle}
	if _, err := driver.Serve(ctx, p.driver, driver.Call{Verb: driver.DeleteVolume, Object: volume.Name}, p.driver.DeleteVolume, request); err != nil {
		p.events.Event(volume, corev1.EventTypeWarning, "VolumeFailedDelete", err.Error())
		return err
	}
	if err := p.kube.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete volume: %w", err)
	}
	return p.setFinalizer(ctx, volume, false)
}

// setFinalizer adds or removes the provisioner's finalizer. A deleted volume is no error.
func (p *provisioner) setFinalizer(ctx context.Context, volume *corev1.PersistentVolume, wanted bool) error {
	if slices.Contains(volume.Finalizers, volumeFinalizer) == wanted {
		return nil
	}
	list := "finalizers"
	if !wanted {
		list = "$deleteFromPrimitiveList/finalizers" // strategic merge patch
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": volume.UID, list: []string{volumeFinalizer}}})
	if err != nil {
		return fmt.Errorf("write patch of volume %s: %w", volume.Name, err)
	}
	_, err = p.kube.CoreV1().PersistentVolumes().Patch(ctx, volume.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch volume %s: %w", volume.Name, err)
	}
	return nil
}

// provision calls the driver as external-provisioner does, and returns the volume to create. It is idempotent. A simulated node has
// no devices, so a block volume is a directory too.
func (p *provisioner) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (*corev1.PersistentVolume, error) {
	if claim.Spec.Selector != nil {
		return nil, errors.New("claim Selector is not supported")
	}
	snapshot, err := p.origin(ctx, claim)
	if err != nil {
		return nil, err
	}
	fstype := class.Parameters[fstypeParameter]
	request := &csi.CreateVolumeRequest{
		Name: volumeName(claim), Parameters: class.Parameters,
		CapacityRange: &csi.CapacityRange{RequiredBytes: requestedBytes(claim)},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fstype}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	}
	if snapshot != "" {
		request.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot},
		}}
	}
	call := driver.Call{Verb: driver.CreateVolume, Object: claim.Namespace + "/" + claim.Name}
	created, err := driver.Serve(ctx, p.driver, call, p.driver.CreateVolume, request)
	if err != nil {
		return nil, err
	}
	handle := created.Volume.VolumeId
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: request.Name, Finalizers: []string{volumeFinalizer},
			Annotations: map[string]string{provisionedByAnnotation: p.options.Name},
		},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class.Name,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name,
				UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes: claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode, MountOptions: class.MountOptions,
			PersistentVolumeReclaimPolicy: ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: p.options.Name, VolumeHandle: handle, FSType: fstype,
				VolumeAttributes: map[string]string{dirAttribute: p.VolumeDir(handle)},
			}},
		},
	}, nil
}

// origin returns the handle of the claim's source snapshot; "" for an empty volume. It rejects what external-provisioner rejects.
func (d *Driver) origin(ctx context.Context, claim *corev1.PersistentVolumeClaim) (string, error) {
	source := claim.Spec.DataSource
	if source == nil {
		return "", nil
	}
	if source.Kind != snapshotKind {
		return "", fmt.Errorf("data source %s %s is not a VolumeSnapshot", source.Kind, source.Name)
	}
	snapshot, err := d.snapshots.SnapshotV1().VolumeSnapshots(claim.Namespace).Get(ctx, source.Name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get snapshot %s: %w", source.Name, err)
	}
	status := snapshot.Status
	switch {
	case snapshot.DeletionTimestamp != nil:
		return "", fmt.Errorf("snapshot %s is being deleted", source.Name)
	case status == nil || !ptr.Deref(status.ReadyToUse, false) || status.BoundVolumeSnapshotContentName == nil:
		return "", fmt.Errorf("snapshot %s is not ready", source.Name)
	}
	content, err := d.snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, *status.BoundVolumeSnapshotContentName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get content of snapshot %s: %w", source.Name, err)
	}
	mode := ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	switch {
	case content.Spec.VolumeSnapshotRef.UID != snapshot.UID:
		return "", fmt.Errorf("content %s is of another snapshot", content.Name)
	case content.Spec.Driver != d.options.Name:
		return "", fmt.Errorf("content %s is of driver %s", content.Name, content.Spec.Driver)
	case content.Status == nil || content.Status.SnapshotHandle == nil:
		return "", fmt.Errorf("content %s has no handle", content.Name)
	case ptr.Deref(content.Status.RestoreSize, 0) > requestedBytes(claim):
		return "", fmt.Errorf("%d bytes are less than the %d of the snapshot", requestedBytes(claim), *content.Status.RestoreSize)
	case ptr.Deref(content.Spec.SourceVolumeMode, mode) != mode && content.Annotations[modeChangeAnnotation] != "true":
		return "", fmt.Errorf("content %s does not permit another volume mode", content.Name)
	}
	return *content.Status.SnapshotHandle, nil
}

func requestedBytes(claim *corev1.PersistentVolumeClaim) int64 {
	return claim.Spec.Resources.Requests.Storage().Value()
}
