package objects

import (
	"cmp"
	"crypto/md5" //nolint:gosec // the length of a hash that kubelets make
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
)

// Annotations of Kubernetes on claims and volumes (k8s.io/component-helpers/storage/volume).
const (
	AnnotationSelectedNode      = "volume.kubernetes.io/selected-node" // the node of the first consumer
	AnnotationBindCompleted     = "pv.kubernetes.io/bind-completed"    // a claim with it and without a volume is lost
	AnnotationBoundByController = "pv.kubernetes.io/bound-by-controller"
	AnnotationProvisionedBy     = "pv.kubernetes.io/provisioned-by" // on dynamically provisioned volumes
)

// progressOf returns the annotations that record the progress of a claim, not its specification.
func progressOf() []string {
	return []string{AnnotationSelectedNode, AnnotationBindCompleted, AnnotationBoundByController}
}

const (
	cacheSuffix = "-cache"   // appended to the name of the claim
	cacheVolume = "cachedir" // volume name in the pod
	cachePath   = "/cachedir"
)

// ClaimNames returns the names of the claims that may be created for a mover.
func ClaimNames(spec MoverSpec) []string {
	var names []string
	if spec.Source.PodVolume == nil {
		names = append(names, spec.Name)
	}
	if spec.Restores {
		names = append(names, spec.Name+cacheSuffix)
	}
	return names
}

// backupClaim returns the claim whose volume is created from a snapshot and read (velero-protocol 2.2).
func backupClaim(spec MoverSpec, info VolumeInfo, settings Settings) *corev1.PersistentVolumeClaim {
	wanted := settings.BackupClaims[info.StorageClass]
	group := "snapshot.storage.k8s.io"
	claim := newClaim(spec, spec.Name)
	claim.Annotations = maps.Clone(wanted.Annotations)
	claim.Spec = corev1.PersistentVolumeClaimSpec{
		AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		StorageClassName: new(cmp.Or(wanted.StorageClass, info.StorageClass)),
		VolumeMode:       volumeMode(info.Block),
		DataSource:       &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: spec.Name},
		Resources:        sized(info.Size),
	}
	switch {
	case wanted.ReadOnly:
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	case wanted.ReadWriteOncePod:
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	}
	return claim
}

// restoreClaim returns the claim whose volume the mover restores into, before that volume is rebound to the target
// (velero-protocol 2.3). Its spec is copied from the target. Each attempt has its own: the mover of an earlier one may
// still write, on a node that does not respond.
func restoreClaim(spec MoverSpec, info VolumeInfo) *corev1.PersistentVolumeClaim {
	target := info.Target
	claim := newClaim(spec, spec.Name)
	claim.Labels = Merged(target.Labels, claim.Labels)
	claim.Annotations = maps.Clone(target.Annotations)
	for _, own := range progressOf() {
		delete(claim.Annotations, own)
	}
	if info.SelectedNode != "" {
		claim.Annotations = map[string]string{AnnotationSelectedNode: info.SelectedNode}
	}
	claim.Annotations = ofAttempt(spec, claim.Annotations)
	claim.Spec = corev1.PersistentVolumeClaimSpec{
		AccessModes:      slices.Clone(target.Spec.AccessModes),
		StorageClassName: target.Spec.StorageClassName,
		VolumeMode:       volumeMode(info.Block),
		VolumeName:       spec.Source.Target.Volume,
		Resources:        *target.Spec.Resources.DeepCopy(),
	}
	return claim
}

// cacheClaim returns the claim of a restore's cache volume; nil if the restore needs none (velero-protocol 2.5). A
// snapshot of unknown size gets a cache volume.
func cacheClaim(spec MoverSpec, info VolumeInfo, settings Settings) *corev1.PersistentVolumeClaim {
	cache := settings.Cache
	if cache == nil || !spec.Restores || spec.SnapshotSize != 0 && spec.SnapshotSize < cache.Threshold {
		return nil
	}
	claim := newClaim(spec, spec.Name+cacheSuffix)
	if node := cmp.Or(info.Node, info.SelectedNode); node != "" {
		claim.Annotations = map[string]string{AnnotationSelectedNode: node}
	}
	claim.Annotations = ofAttempt(spec, claim.Annotations)
	claim.Spec = corev1.PersistentVolumeClaimSpec{
		AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		StorageClassName: new(cache.StorageClass),
		VolumeMode:       volumeMode(false),
		Resources:        sized(cacheSize(cache.Limit)),
	}
	return claim
}

// cacheSize returns the cache limit plus 20 %, in bytes, rounded up to whole GiB.
func cacheSize(limit int64) resource.Quantity {
	const gib = 1 << 30
	return *resource.NewQuantity((limit*12/10+gib-1)/gib*gib, resource.BinarySI)
}

func newClaim(spec MoverSpec, name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: spec.Namespace,
		Labels:          Merged(OwnerLabels(spec.UID, spec.ExposingNode), map[string]string{api.LabelExclude: "true"}),
		OwnerReferences: []metav1.OwnerReference{ownerReference(spec)},
	}}
}

func sized(size resource.Quantity) corev1.VolumeResourceRequirements {
	return corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}}
}

func volumeMode(block bool) *corev1.PersistentVolumeMode {
	if block {
		return ptr.To(corev1.PersistentVolumeBlock)
	}
	return ptr.To(corev1.PersistentVolumeFilesystem)
}

func readOnly(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Equal(claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany})
}

// Disposable reports whether a volume was provisioned for this claim only, although its reclaim policy keeps it. A volume of an
// administrator is not disposable, nor is one that the claim has named itself, as that of an in-place restore does: Kubernetes
// annotates a claim for which it has chosen the volume.
func Disposable(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete &&
		claim.Annotations[AnnotationBoundByController] != "" &&
		volume.Annotations[AnnotationProvisionedBy] != "" && volume.Labels[api.LabelKept] == "" && IsOf(volume, claim) && !Existed(volume, claim)
}

// Existed reports whether Kubernetes has bound a claim to a volume that existed before. Whatever data source the claim has, it takes
// an available volume of the class, if there is one (kubernetes #101878), and annotates it.
func Existed(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return volume.Annotations[AnnotationBoundByController] != "" && volume.CreationTimestamp.Before(&claim.CreationTimestamp)
}

// IsOf reports whether the claimRef of a volume, which may be nil, names this claim and no other of its name.
func IsOf(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return volume != nil && volume.Spec.ClaimRef != nil && volume.Spec.ClaimRef.UID == claim.UID
}

// DefaultPodsDir is the default directory of the kubelet for pod volumes.
const DefaultPodsDir = "/var/lib/kubelet/pods"

// annotationMirrored is on static pods: the kubelet names their directory after its value, not after the UID.
const annotationMirrored = "kubernetes.io/config.mirror"

// annotationMigrated is on in-tree volumes that a CSI driver now serves.
const annotationMigrated = "pv.kubernetes.io/migrated-to"

// PodVolume is one volume of a pod with its persistent volume.
type PodVolume struct {
	Pod    *corev1.Pod
	Volume corev1.Volume
	Bound  *corev1.PersistentVolume // nil for a volume without a claim
}

// FindVolume returns the pod's volume of that name, or an error if there is none.
func FindVolume(pod *corev1.Pod, name string) (corev1.Volume, error) {
	for _, volume := range pod.Spec.Volumes {
		if volume.Name == name {
			return volume, nil
		}
	}
	return corev1.Volume{}, fmt.Errorf("pod %s/%s has no volume %q", pod.Namespace, pod.Name, name)
}

// ClaimName returns the name of the volume's claim, or empty.
func ClaimName(pod *corev1.Pod, volume corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil: // KEP-1698: the claim is named after pod and volume
		return pod.Name + "-" + volume.Name
	default:
		return ""
	}
}

// Block reports whether the volume is a device and not a directory.
func (p PodVolume) Block() bool { return p.Bound != nil && IsBlock(p.Bound.Spec.VolumeMode) }

// IsBlock reports whether a volume or claim of that mode is a device; nil is a file system.
func IsBlock(mode *corev1.PersistentVolumeMode) bool {
	return ptr.Deref(mode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock
}

// HostDir returns the path of the volume below the kubelet's pods directory. pkg/kubelet/config and the volume
// plugins of Kubernetes define it.
func (p PodVolume) HostDir() (string, error) {
	plugin, name, err := p.plugin()
	if err != nil {
		return "", err
	}
	pod, err := p.podDir()
	if err != nil {
		return "", err
	}
	if p.Block() {
		return path.Join(pod, "volumeDevices", plugin, name), nil
	}
	dir := path.Join(pod, "volumes", plugin, name)
	if plugin == pluginCSI {
		dir = path.Join(dir, "mount")
	}
	return dir, nil
}

// Glob returns a pattern that matches the same path without knowing the volume plugin, as Velero does.
func (p PodVolume) Glob() (string, error) {
	pod, err := p.podDir()
	if err != nil {
		return "", err
	}
	kind, name := "volumes", p.Volume.Name
	if p.Bound != nil {
		name = p.Bound.Name
	}
	if p.Block() {
		kind = "volumeDevices"
	}
	pattern := path.Join(pod, kind, "*", name)
	if p.isCSI() && !p.Block() {
		pattern = path.Join(pattern, "mount")
	}
	return pattern, nil
}

// podDir returns the directory of the pod. Every client that may create a pod may annotate it. A value that is no
// hash could lead to another pod's volumes, or out of the directory.
func (p PodVolume) podDir() (string, error) {
	mirrored := p.Pod.Annotations[annotationMirrored]
	switch {
	case mirrored == "":
		return string(p.Pod.UID), nil
	case !isHash(mirrored):
		return "", fmt.Errorf("pod %s/%s has annotation %s with %q, which is not a hash of the kubelet", p.Pod.Namespace, p.Pod.Name, annotationMirrored, mirrored)
	}
	return mirrored, nil
}

// isHash reports whether a text is a hexadecimal MD5, the identity of static pods in kubelets (pkg/kubelet/config).
func isHash(text string) bool {
	return len(text) == hex.EncodedLen(md5.Size) && strings.Trim(text, "0123456789abcdef") == ""
}

// pluginCSI is the directory of CSI volumes, which have another one for their files in it.
const pluginCSI = "kubernetes.io~csi"

// isCSI reports whether Velero looks for the files in a directory of a CSI volume (pkg/util/kube, isProvisionedByCSI).
func (p PodVolume) isCSI() bool {
	if p.Bound == nil {
		return p.Volume.CSI != nil
	}
	return p.Bound.Spec.CSI != nil || p.Bound.Annotations[annotationMigrated] != ""
}

// hasDriver reports whether a CSI driver serves an in-tree volume, since Kubernetes has no plugin for it any more. That of an
// administrator is not annotated (pkg/volume/csimigration).
func hasDriver(s *corev1.PersistentVolumeSource) bool {
	return s.AWSElasticBlockStore != nil || s.AzureDisk != nil || s.AzureFile != nil || s.Cinder != nil ||
		s.GCEPersistentDisk != nil || s.PortworxVolume != nil || s.VsphereVolume != nil
}

// plugin returns the directory of the volume's plugin and the name of the volume in it.
func (p PodVolume) plugin() (plugin, name string, err error) {
	switch {
	case p.Bound == nil:
		plugin, name = pluginDir(&p.Volume.VolumeSource), p.Volume.Name
	case p.isCSI(), hasDriver(&p.Bound.Spec.PersistentVolumeSource):
		plugin, name = pluginCSI, p.Bound.Name
	default:
		plugin, name = pluginDir(&p.Bound.Spec.PersistentVolumeSource), p.Bound.Name
	}
	switch {
	case plugin != "":
		return plugin, name, nil
	case p.Bound == nil:
		return "", "", fmt.Errorf("volume %q of pod %s/%s has a type whose files are not in the kubelet's pods directory, or not under its name", name, p.Pod.Namespace, p.Pod.Name)
	}
	return "", "", fmt.Errorf("persistent volume %s has a type whose files are not in the kubelet's pods directory", name)
}

// pluginDir returns the directory of the plugin (its name in Kubernetes, escaped by k8s.io/utils/strings) of a VolumeSource or
// PersistentVolumeSource, of which one field is set; empty if it has none, such as hostPath. That of a FlexVolume is called
// vendor~driver (pkg/volume/flexvolume).
func pluginDir(source any) string {
	set, err := runtime.DefaultUnstructuredConverter.ToUnstructured(source)
	if err != nil {
		return ""
	}
	if driver, ok, _ := unstructured.NestedString(set, "flexVolume", "driver"); ok {
		return strings.ReplaceAll(driver, "/", "~")
	}
	for field, name := range map[string]string{
		"cephfs": "cephfs", "configMap": "configmap", "csi": "csi", "downwardAPI": "downward-api", "emptyDir": "empty-dir", "fc": "fc",
		"iscsi": "iscsi", "local": "local-volume", "nfs": "nfs", "projected": "projected", "rbd": "rbd", "secret": "secret",
	} {
		if set[field] != nil {
			return "kubernetes.io~" + name
		}
	}
	return ""
}

// ChangedBlocks identifies a snapshot to the service that lists its changed blocks: CSI's snapshot metadata service (KEP-3314), or
// that of vSphere (Velero's pkg/exposer/csi_snapshot.go, getCBTInfo).
type ChangedBlocks struct {
	Change   string // by which the next backup asks for what has changed since; the handle of the snapshot for CSI
	Volume   string // the handle of the volume
	Snapshot string // name of the VolumeSnapshot in Velero's namespace
}

// VolumeInfo is what the cluster knows about the volume to move. Fields of other sources are empty.
type VolumeInfo struct {
	OS    corev1.OSName // of the nodes that can mount it
	Block bool          // it is a device

	Node        string              // of a pod volume: node of the pod
	HostPath    string              // of a pod volume: its path on that node
	Tolerations []corev1.Toleration // of a pod volume: those of the pod

	StorageClass string                        // of the source claim or the target claim
	Handle       string                        // of the snapshotted volume, for a block mover
	Size         resource.Quantity             // of a volume created from a snapshot
	Topology     *corev1.NodeSelector          // the nodes that can reach the source volume; nil for all
	Excluded     []string                      // names of nodes that cannot attach it
	Failed       []string                      // names of nodes that are not Ready, if the mover tolerates them
	Target       *corev1.PersistentVolumeClaim // the claim to restore to
	Existing     *corev1.PersistentVolume      // the volume to restore in place; nil for a new one
	SelectedNode string                        // the node of the target's consumer; empty if any is allowed
	Changes      *ChangedBlocks                // of a snapshot that a block mover reads
}
