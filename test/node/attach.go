package node

import (
	"context"
	"crypto/sha256"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// attacher is the source of the attach-detach controller's Events.
var attacher = corev1.EventSource{Component: "attachdetach-controller"}

// attach plays the attach-detach controller, which serves only nodes with a real kubelet. If the driver requires it,
// attach creates the VolumeAttachment of a volume, and waits until the driver has attached it.
func (n *Node) attach(ctx context.Context, pod *corev1.Pod, volume *corev1.PersistentVolume) error {
	if volume.Spec.CSI == nil {
		return nil
	}
	driver, err := n.client.StorageV1().CSIDrivers().Get(ctx, volume.Spec.CSI.Driver, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get CSIDriver of volume %s: %w", volume.Name, err)
	case !ptr.Deref(driver.Spec.AttachRequired, true):
		return nil
	}
	attachment := n.attachment(volume)
	for ctx.Err() == nil {
		_, err := n.client.StorageV1().VolumeAttachments().Create(ctx, attachment, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("attach volume %s: %w", volume.Name, err)
		}
		n.noteAttachment(pod, attachment.Name)
		attached, err := n.attached(ctx, pod, attachment.Name)
		if attached {
			n.eventFrom(ctx, attacher, pod, corev1.EventTypeNormal, "SuccessfulAttachVolume",
				fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", volume.Name))
		}
		if attached || err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// attachment returns a VolumeAttachment with the name that Kubernetes gives it (pkg/volume/csi).
func (n *Node) attachment(volume *corev1.PersistentVolume) *storagev1.VolumeAttachment {
	source := volume.Spec.CSI
	sum := sha256.Sum256([]byte(source.VolumeHandle + source.Driver + n.options.Name))
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csi-%x", sum)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: source.Driver, NodeName: n.options.Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume.Name},
		},
	}
}

// attached waits until a volume is attached, or until its attachment for an earlier pod is deleted. Errors of the
// driver become Events of the pod.
func (n *Node) attached(ctx context.Context, pod *corev1.Pod, name string) (bool, error) {
	var watcher watch.Interface
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
	err := insist(ctx, func() (err error) {
		watcher, err = n.client.StorageV1().VolumeAttachments().Watch(ctx, options)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("watch VolumeAttachment %s: %w", name, err)
	}
	defer watcher.Stop()
	reported := ""
	for event := range watcher.ResultChan() {
		attachment, ok := event.Object.(*storagev1.VolumeAttachment)
		switch {
		case !ok || event.Type == watch.Deleted:
			return false, nil
		case attachment.DeletionTimestamp != nil:
			continue
		case attachment.Status.Attached:
			return true, nil
		}
		if failed := attachment.Status.AttachError; failed != nil && failed.Message != reported {
			reported = failed.Message
			n.eventFrom(ctx, attacher, pod, corev1.EventTypeWarning, "FailedAttachVolume", fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s",
				ptr.Deref(attachment.Spec.Source.PersistentVolumeName, ""), reported))
		}
	}
	return false, nil
}

// noteAttachment records a VolumeAttachment to delete after the pod has ended.
func (n *Node) noteAttachment(pod *corev1.Pod, name string) {
	n.lock.Lock()
	defer n.lock.Unlock()
	if run := n.pods[pod.UID]; run != nil {
		run.attachments = append(run.attachments, name)
	}
}

// detach deletes the VolumeAttachments of a pod whose containers have ended.
func (n *Node) detach(ctx context.Context, run *podRun) error {
	n.lock.Lock()
	names := run.attachments
	run.attachments = nil
	n.lock.Unlock()
	for _, name := range names {
		err := n.client.StorageV1().VolumeAttachments().Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("detach %s: %w", name, err)
		}
	}
	return nil
}
