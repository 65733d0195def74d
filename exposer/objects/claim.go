package objects

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
)

// Annotations of Kubernetes on claims and volumes (k8s.io/component-helpers/storage/volume).
const (
	annotationSelectedNode      = "volume.kubernetes.io/selected-node" // the node of the first consumer
	AnnotationBindCompleted     = "pv.kubernetes.io/bind-completed"    // a claim with it and without a volume is lost
	AnnotationBoundByController = "pv.kubernetes.io/bound-by-controller"
	annotationProvisionedBy     = "pv.kubernetes.io/provisioned-by" // on dynamically provisioned volumes
)

// progressOf returns the annotations that record the progress of a claim, not its specification.
func progressOf() []string {
	return []string{annotationSelectedNode, AnnotationBindCompleted, AnnotationBoundByController}
}

const (
	cacheSuffix = "-cache"   // appended to the name of the claim
	cacheVolume = "cachedir" // volume name in the pod
	cachePath   = "/cachedir"
)

// ClaimNames returns the names of the claims that may be created for a mover.
func ClaimNames(move MoverSpec) []string {
	var names []string
	if move.Source.PodVolume == nil {
		names = append(names, move.Name)
	}
	if move.Restores {
		names = append(names, move.Name+cacheSuffix)
	}
	return names
}

// backupClaim returns the claim whose volume is created from a snapshot and read (velero-protocol 2.2).
func backupClaim(move MoverSpec, facts VolumeInfo, settings Settings) *corev1.PersistentVolumeClaim {
	wanted := settings.BackupClaims[facts.StorageClass]
	group := "snapshot.storage.k8s.io"
	claim := newClaim(move, move.Name)
	claim.Annotations = maps.Clone(wanted.Annotations)
	claim.Spec = corev1.PersistentVolumeClaimSpec{
		AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		StorageClassName: new(cmp.Or(wanted.StorageClass, facts.StorageClass)),
		VolumeMode:       volumeMode(facts.Block),
		DataSource:       &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: move.Name},
		Resources:        sized(facts.Size),
	}
	if wanted.ReadOnly {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	}
	return claim
}

// restoreClaim returns the claim whose volume the mover restores into, before that volume is rebound to the target
// (velero-protocol 2.3). Its spec is copied from the target. Each attempt has its own: the mover of an earlier one may
// still write, on a node that does not respond.
func restoreClaim(move MoverSpec, facts VolumeInfo) *corev1.PersistentVolumeClaim {
	target := facts.Target
	claim := newClaim(move, move.Name)
	claim.Labels = Merged(target.Labels, claim.Labels)
	claim.Annotations = maps.Clone(target.Annotations)
	for _, own := range progressOf() {
		delete(claim.Annotations, own)
	}
	if facts.SelectedNode != "" {
		claim.Annotations = map[string]string{annotationSelectedNode: facts.SelectedNode}
	}
	claim.Annotations = ofAttempt(move, claim.Annotations)
	claim.Spec = corev1.PersistentVolumeClaimSpec{
		AccessModes:      slices.Clone(target.Spec.AccessModes),
		StorageClassName: target.Spec.StorageClassName,
		VolumeMode:       target.Spec.VolumeMode,
		Resources:        *target.Spec.Resources.DeepCopy(),
	}
	return claim
}

// cacheClaim returns the claim of a restore's cache volume; nil if the restore needs none (velero-protocol 2.5). A
// snapshot of unknown size gets a cache volume.
func cacheClaim(move MoverSpec, facts VolumeInfo, settings Settings) *corev1.PersistentVolumeClaim {
	cache := settings.Cache
	if cache == nil || !move.Restores || move.SnapshotSize != 0 && move.SnapshotSize < cache.Threshold {
		return nil
	}
	claim := newClaim(move, move.Name+cacheSuffix)
	if node := cmp.Or(facts.Node, facts.SelectedNode); node != "" {
		claim.Annotations = map[string]string{annotationSelectedNode: node}
	}
	claim.Annotations = ofAttempt(move, claim.Annotations)
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

func newClaim(move MoverSpec, name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: move.Namespace,
		Labels:          Merged(OwnerLabels(move.UID, move.ExposingNode), map[string]string{api.LabelExclude: "true"}),
		OwnerReferences: []metav1.OwnerReference{ownerReference(move)},
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

// Disposable reports whether a volume was provisioned for this claim only, although its reclaim policy keeps it. A
// volume of an administrator, created before the claim, is not disposable.
func Disposable(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete &&
		volume.Annotations[annotationProvisionedBy] != "" && volume.Labels[api.LabelKept] == "" &&
		volume.Spec.ClaimRef != nil && volume.Spec.ClaimRef.UID == claim.UID
}
