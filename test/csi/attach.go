package csi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// attachFinalizer returns the finalizer that keeps a VolumeAttachment until the driver has detached the volume, and the
// PersistentVolume until it has no VolumeAttachment (external-attacher).
func (d *Driver) attachFinalizer() string {
	return "external-attacher/" + strings.ReplaceAll(d.options.Driver, ".", "-")
}

// syncAttachment reconciles one VolumeAttachment as external-attacher does.
func (d *Driver) syncAttachment(ctx context.Context, name string) error {
	attachment, err := d.caches.attachments.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	volume := ptr.Deref(attachment.Spec.Source.PersistentVolumeName, "")
	switch held := slices.Contains(attachment.Finalizers, d.attachFinalizer()); {
	case attachment.DeletionTimestamp != nil && !held:
		return nil
	case attachment.DeletionTimestamp != nil:
		if err := d.callAttacher(ctx, Detach, volume); err != nil {
			return err
		}
		return d.patchAttachment(ctx, attachment, map[string]any{"metadata": map[string]any{"finalizers": nil}})
	case attachment.Status.Attached:
		return nil
	case !held:
		return d.patchAttachment(ctx, attachment, map[string]any{"metadata": map[string]any{"finalizers": []string{d.attachFinalizer()}}})
	}
	if err := d.holdAttached(ctx, volume); err != nil {
		return err
	}
	if err := d.callAttacher(ctx, Attach, volume); err != nil {
		reported := map[string]any{"attachError": map[string]any{"time": metav1.Now(), "message": err.Error()}}
		if patched := d.patchAttachment(ctx, attachment, map[string]any{"status": reported}, "status"); patched != nil {
			return patched
		}
		return err
	}
	return d.patchAttachment(ctx, attachment, map[string]any{"status": map[string]any{"attached": true, "attachError": nil}}, "status")
}

// holdAttached adds the finalizer to a PersistentVolume before it is attached.
func (d *Driver) holdAttached(ctx context.Context, name string) error {
	volume, err := d.kube.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get PersistentVolume: %w", err)
	}
	if volume.DeletionTimestamp != nil || slices.Contains(volume.Finalizers, d.attachFinalizer()) {
		return nil
	}
	volume.Finalizers = append(volume.Finalizers, d.attachFinalizer())
	return d.update(ctx, volume)
}

// freeAttached removes the finalizer from a deleting PersistentVolume. It returns an error while the volume is attached.
func (d *Driver) freeAttached(ctx context.Context, cached *corev1.PersistentVolume) error {
	if node, err := d.attachedTo(ctx, cached); err != nil || node != "" {
		return cmp.Or(err, fmt.Errorf("persistentvolume %s is still attached to node %s", cached.Name, node))
	}
	volume := cached.DeepCopy()
	volume.Finalizers = without(volume.Finalizers, d.attachFinalizer())
	return d.update(ctx, volume)
}

func (d *Driver) patchAttachment(ctx context.Context, attachment *storagev1.VolumeAttachment, fields map[string]any, subresources ...string) error {
	patch, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("write patch of VolumeAttachment %s: %w", attachment.Name, err)
	}
	_, err = d.kube.StorageV1().VolumeAttachments().Patch(ctx, attachment.Name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch VolumeAttachment %s: %w", attachment.Name, err)
	}
	return nil
}

// attachedTo returns the node to which a volume is attached, or is being attached or detached; "" if there is none.
// The real external-provisioner does not delete such a volume.
func (d *Driver) attachedTo(ctx context.Context, volume *corev1.PersistentVolume) (string, error) {
	if !d.options.Attach {
		return "", nil
	}
	list, err := d.kube.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list VolumeAttachments: %w", err)
	}
	for _, attachment := range list.Items {
		if ptr.Deref(attachment.Spec.Source.PersistentVolumeName, "") == volume.Name {
			return attachment.Spec.NodeName, nil
		}
	}
	return "", nil
}
