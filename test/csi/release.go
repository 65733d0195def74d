package csi

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/csi/driver"
)

const (
	// provisionedByAnnotation names the driver of a PersistentVolume.
	provisionedByAnnotation = "pv.kubernetes.io/provisioned-by"
	// volumeFinalizer keeps a volume's object while its bytes exist (KEP-2644). Only volumes with the policy Delete
	// have it: sig-storage-lib-external-provisioner adds and removes it with the policy.
	volumeFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"
)

// syncVolume sets the finalizer according to the reclaim policy, and deletes a released volume.
func (d *Driver) syncVolume(ctx context.Context, name string) error {
	volume, err := d.caches.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	if volume.DeletionTimestamp != nil && slices.Contains(volume.Finalizers, d.attachFinalizer()) {
		return d.freeAttached(ctx, volume) // the update enqueues the volume again
	}
	if !d.released(volume) {
		return d.protect(ctx, volume)
	}
	// The policy may have changed in the meantime, so check it right before the deletion.
	live, err := d.kube.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get PersistentVolume: %w", err)
	}
	if !d.released(live) {
		return nil
	}
	if err := d.reclaim(ctx, live); err != nil && ctx.Err() == nil {
		d.recorder.Event(live, corev1.EventTypeWarning, "VolumeFailedDelete", err.Error())
		return err
	}
	return nil
}

// owns reports whether this driver has provisioned the volume.
func (d *Driver) owns(volume *corev1.PersistentVolume) bool {
	return volume.Spec.CSI != nil && volume.Spec.CSI.Driver == d.options.Driver &&
		volume.Annotations[provisionedByAnnotation] == d.options.Driver
}

// released reports whether the volume's bytes must be deleted. A volume that is being deleted without the finalizer
// only waits for other components.
func (d *Driver) released(volume *corev1.PersistentVolume) bool {
	return d.owns(volume) && volume.Status.Phase == corev1.VolumeReleased &&
		volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
		(volume.DeletionTimestamp == nil || slices.Contains(volume.Finalizers, volumeFinalizer))
}

// protect adds or removes the finalizer according to the policy.
func (d *Driver) protect(ctx context.Context, volume *corev1.PersistentVolume) error {
	deletes := volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	has := slices.Contains(volume.Finalizers, volumeFinalizer)
	if has == deletes || !has && volume.DeletionTimestamp != nil {
		return nil
	}
	changed := volume.DeepCopy()
	if deletes {
		changed.Finalizers = append(changed.Finalizers, volumeFinalizer)
	} else {
		changed.Finalizers = without(changed.Finalizers, volumeFinalizer)
	}
	return d.update(ctx, changed)
}

// reclaim deletes the bytes, then the object, then removes the finalizer.
func (d *Driver) reclaim(ctx context.Context, volume *corev1.PersistentVolume) error {
	handle := volume.Spec.CSI.VolumeHandle
	if node, err := d.attachedTo(ctx, volume); err != nil || node != "" {
		return cmp.Or(err, fmt.Errorf("persistentvolume %s is still attached to node %s", volume.Name, node))
	}
	if err := d.deleteVolume(ctx, handle, volume.Name); err != nil {
		return err
	}
	volumes := d.kube.CoreV1().PersistentVolumes()
	if volume.DeletionTimestamp == nil {
		err := volumes.Delete(ctx, volume.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(volume.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete PersistentVolume: %w", err)
		}
	}
	live, err := volumes.Get(ctx, volume.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get PersistentVolume: %w", err)
	}
	live.Finalizers = without(live.Finalizers, volumeFinalizer)
	return d.update(ctx, live)
}

func (d *Driver) deleteVolume(ctx context.Context, handle, object string) error {
	_, err := driver.Serve(ctx, d.driver, Call{Verb: DeleteVolume, Object: object}, func() (*csi.DeleteVolumeResponse, error) {
		return d.driver.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: handle})
	})
	return err
}

func (d *Driver) update(ctx context.Context, volume *corev1.PersistentVolume) error {
	_, err := d.kube.CoreV1().PersistentVolumes().Update(ctx, volume, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update finalizers of PersistentVolume: %w", err)
	}
	return nil
}

func without(finalizers []string, removed string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == removed })
}
