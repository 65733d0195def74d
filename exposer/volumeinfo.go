package exposer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/objects"
)

// annotationFastVSphere has vSphere provision volumes fast.
const annotationFastVSphere = "csi.vsphere.volume/fast-provisioning"

// parameterFSType is the storage class parameter that names the file system of its volumes.
const parameterFSType = "csi.storage.k8s.io/fstype"

// errSourceGone reports a source that was deleted after the transfer was accepted; the next reconcile fails the
// transfer.
var errSourceGone = errors.New("find source pod: it does not exist")

// volumeInfo reads the properties of a mover's volume from the cluster, each object once.
func (e *Exposer) volumeInfo(ctx context.Context, spec objects.MoverSpec) (objects.VolumeInfo, error) {
	switch source := spec.Source; {
	case source.PodVolume != nil:
		return e.podVolume(ctx, source.PodVolume)
	case source.Snapshot != nil:
		return e.snapshot(ctx, spec)
	case source.Target != nil:
		return e.target(ctx, spec)
	}
	return objects.VolumeInfo{}, &TerminalError{errors.New("find source volume: the resource names no volume")}
}

func (e *Exposer) podVolume(ctx context.Context, source *objects.PodVolumeSource) (objects.VolumeInfo, error) {
	pod, err := e.sourcePod(ctx, source.Pod)
	if err != nil {
		return objects.VolumeInfo{}, err
	}
	located, err := e.Paths.locate(ctx, pod, source.Volume)
	if err != nil {
		return objects.VolumeInfo{}, err
	}
	return objects.VolumeInfo{
		OS: e.Paths.system(), Node: pod.Spec.NodeName, HostPath: located.Path, Block: located.Block, Tolerations: pod.Spec.Tolerations,
	}, nil
}

func (e *Exposer) sourcePod(ctx context.Context, reference corev1.ObjectReference) (*corev1.Pod, error) {
	is := func(pod *corev1.Pod) bool { return reference.UID == "" || pod.UID == reference.UID }
	if e.Source != nil {
		if pod := e.Source(reference.Namespace + "/" + reference.Name); pod != nil && is(pod) {
			return pod, nil
		}
	}
	pod, err := e.Client.CoreV1().Pods(reference.Namespace).Get(ctx, reference.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && !is(pod):
		return nil, errSourceGone
	case err != nil:
		return nil, fmt.Errorf("get source pod %s/%s: %w", reference.Namespace, reference.Name, err)
	}
	return pod, nil
}

// snapshot reads two objects, the class mostly from a cache. It reads the source volume too if not every node can reach it, and
// for a block mover.
func (e *Exposer) snapshot(ctx context.Context, spec objects.MoverSpec) (objects.VolumeInfo, error) {
	source := spec.Source.Snapshot
	class, err := e.storageClass(ctx, source.StorageClass)
	if err != nil {
		return objects.VolumeInfo{}, err
	}
	claim, err := e.claim(ctx, source.Namespace, source.Claim)
	if err != nil {
		return objects.VolumeInfo{}, err
	}
	info := objects.VolumeInfo{
		StorageClass: source.StorageClass, Block: spec.BlockMover || objects.IsBlock(claim.Spec.VolumeMode),
		Size: claim.Spec.Resources.Requests[corev1.ResourceStorage],
	}
	if info.OS = corev1.Linux; !info.Block {
		if info.OS, err = e.volumeOS(ctx, claim, class); err != nil {
			return objects.VolumeInfo{}, err
		}
	}
	err = e.addVolume(ctx, &info, claim, class, spec.BlockMover)
	return info, err
}

// addVolume adds the nodes that can reach the volume of a claim and, for a block mover, its handle.
func (e *Exposer) addVolume(ctx context.Context, info *objects.VolumeInfo, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, handle bool) (err error) {
	_, fast := e.current().BackupClaims[info.StorageClass].Annotations[annotationFastVSphere]
	late := waitsForConsumer(class)
	switch {
	case !fast && !late && !handle:
		return nil
	case claim.Spec.VolumeName == "":
		return fmt.Errorf("source claim %s/%s has no volume", claim.Namespace, claim.Name)
	}
	if late || handle {
		volume, err := e.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			return terminalIfGone(fmt.Errorf("get volume of claim %s/%s: %w", claim.Namespace, claim.Name, err))
		}
		if late && volume.Spec.NodeAffinity != nil {
			info.Topology = volume.Spec.NodeAffinity.Required
		}
		if handle && volume.Spec.CSI != nil {
			info.Handle = volume.Spec.CSI.VolumeHandle
		}
	}
	if fast {
		info.Excluded, err = e.attached(ctx, claim.Spec.VolumeName)
	}
	return err
}

// failedNodes are the nodes that were not Ready when they were listed. All movers share a list: that of a large cluster has many MiB.
type failedNodes struct {
	lock   sync.Mutex
	names  []string
	listed time.Time
}

// failedNodesAge is how long a list serves. Movers only prefer other nodes.
const failedNodesAge = 15 * time.Second

// readFailedNodes returns which nodes are not Ready.
func (e *Exposer) readFailedNodes(ctx context.Context) ([]string, error) {
	e.failed.lock.Lock()
	defer e.failed.lock.Unlock()
	now := e.Clock.Now()
	if now.Before(e.failed.listed.Add(failedNodesAge)) {
		return e.failed.names, nil
	}
	nodes, err := e.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"}) // from the API server's cache
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	e.failed.names, e.failed.listed = nil, now
	for i := range nodes.Items {
		if node := &nodes.Items[i]; !objects.IsReady(node) {
			e.failed.names = append(e.failed.names, node.Name)
		}
	}
	return e.failed.names, nil
}

// target reads the target claim.
func (e *Exposer) target(ctx context.Context, spec objects.MoverSpec) (objects.VolumeInfo, error) {
	target := spec.Source.Target
	claim, err := e.claim(ctx, target.Namespace, target.Claim)
	if err != nil {
		return objects.VolumeInfo{}, err
	}
	if claim.Spec.VolumeName != "" {
		return objects.VolumeInfo{}, &TerminalError{fmt.Errorf("target claim %s/%s is already bound to volume %s", claim.Namespace, claim.Name, claim.Spec.VolumeName)}
	}
	info := objects.VolumeInfo{
		OS: spec.OS, Target: claim, Block: spec.BlockMover || objects.IsBlock(claim.Spec.VolumeMode), StorageClass: ptr.Deref(claim.Spec.StorageClassName, ""),
	}
	if target.Volume != "" { // it is where it is, wherever its last consumer was
		info.Existing, err = e.existing(ctx, spec, claim)
		return info, err
	}
	if !e.current().IgnoreDelayBinding {
		info.SelectedNode, err = e.selectedNode(ctx, claim)
	}
	return info, err
}

// selectedNode returns the node that was selected for the consumer of a claim; empty if it is not ready or was deleted: the consumer
// starts again on another one.
func (e *Exposer) selectedNode(ctx context.Context, claim *corev1.PersistentVolumeClaim) (string, error) {
	name := claim.Annotations[objects.AnnotationSelectedNode]
	if name == "" {
		return "", nil
	}
	node, err := e.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !objects.IsReady(node) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("get node %s: %w", name, err)
	}
	return name, nil
}

func (e *Exposer) storageClass(ctx context.Context, name string) (*storagev1.StorageClass, error) {
	if e.StorageClass != nil {
		if class := e.StorageClass(name); class != nil {
			return class, nil
		}
	}
	class, err := e.Client.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, terminalIfGone(fmt.Errorf("get storage class %s: %w", name, err))
	}
	return class, nil
}

func (e *Exposer) claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	claim, err := e.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, terminalIfGone(fmt.Errorf("get claim %s/%s: %w", namespace, name, err))
	}
	return claim, nil
}

// volumeOS returns the operating system for which a file system was formatted (velero-protocol 5.7). It is that of the
// node to which the volume is attached, else of the node of its consumer. It reads neither if no agent runs on
// Windows.
func (e *Exposer) volumeOS(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (corev1.OSName, error) {
	name, err := e.consumer(ctx, claim)
	if err != nil {
		return "", err
	}
	if name != "" {
		node, err := e.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return corev1.OSName(cmp.Or(node.Labels[corev1.LabelOSStable], string(corev1.Linux))), nil
		}
		if !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("get node %s: %w", name, err)
		}
	}
	if strings.EqualFold(class.Parameters[parameterFSType], "ntfs") {
		return corev1.Windows, nil
	}
	return corev1.Linux, nil
}

// consumer returns the node that uses or last used the volume of a claim; empty if there is none, or no agent runs
// on Windows.
func (e *Exposer) consumer(ctx context.Context, claim *corev1.PersistentVolumeClaim) (string, error) {
	if _, windows := e.Templates[corev1.Windows]; !windows {
		return "", nil
	}
	if claim.Spec.VolumeName != "" {
		nodes, err := e.attached(ctx, claim.Spec.VolumeName)
		if err != nil {
			return "", err
		}
		if len(nodes) > 0 {
			return nodes[0], nil
		}
	}
	return claim.Annotations[objects.AnnotationSelectedNode], nil
}

// attached returns the nodes to which a volume is attached; vSphere cannot fast-provision there.
func (e *Exposer) attached(ctx context.Context, volume string) ([]string, error) {
	list, err := e.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list volume attachments: %w", err)
	}
	var nodes []string
	for _, attachment := range list.Items {
		if ptr.Deref(attachment.Spec.Source.PersistentVolumeName, "") == volume {
			nodes = append(nodes, attachment.Spec.NodeName)
		}
	}
	return nodes, nil
}

func waitsForConsumer(class *storagev1.StorageClass) bool {
	return ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer
}
