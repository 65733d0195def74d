package objects

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// MoverSpec is what one custom resource asks to be moved, and by which mover. It is all that an exposure
// depends on besides the cluster and the settings.
type MoverSpec struct {
	Name, Namespace string                  // of the custom resource; what is exposed for it has the same
	UID             types.UID               // of the custom resource; names container, volume and mount path
	GVK             schema.GroupVersionKind // of the custom resource: informer objects do not carry it
	PodLabel        string                  // the label by which Velero finds a kind's pods
	Attempt         int                     // how often the mover was restarted before
	ExposingNode    string                  // the node whose agent exposes it

	Command        []string // what follows /velero, but for what depends on the volume
	PassVolumeMode bool     // the command takes --volume-mode
	Group          string   // value of LabelPodGroup, over which movers spread; empty for none
	OS             corev1.OSName
	SnapshotSize   int64 // of the kopia snapshot to restore, in bytes; 0: not known
	Restores       bool  // it writes to the volume, and may have a cache volume

	Source Source
}

// Source is the volume of a movement, as the custom resource names it. Exactly one field is set.
type Source struct {
	PodVolume *PodVolumeSource
	Snapshot  *SnapshotSource
	Target    *TargetSource
}

// PodVolumeSource is a volume of a pod that runs.
type PodVolumeSource struct {
	Pod    corev1.ObjectReference
	Volume string // its name in the pod
}

// SnapshotSource is a VolumeSnapshot that is to be read.
type SnapshotSource struct {
	Namespace    string // of snapshot and claim
	Snapshot     string // name of the VolumeSnapshot
	Class        string // VolumeSnapshotClass, as the DataUpload names it
	Claim        string // the claim of which it was taken
	StorageClass string // of that claim, as the DataUpload names it
}

// TargetSource is a claim into which a volume is restored. The claim is not bound: the restored volume
// is bound to it in the end.
type TargetSource struct {
	Namespace, Claim string
}

// Settings are what the configuration says of movers and their volumes.
type Settings struct {
	PriorityClass string // in force, not merely configured; empty for none
	Resources     corev1.ResourceRequirements
	Labels        map[string]string
	Annotations   map[string]string
	Tolerations   []corev1.Toleration // besides those that movers take over

	Privileged         bool // movers of pod volumes: needed where security modules keep root from other pods' files
	LoadAffinity       []LoadAffinity
	BackupClaims       map[string]BackupClaim // by the storage class of the source volume
	IgnoreDelayBinding bool                   // restore without waiting for the target claim's first consumer
	RestoreCopies      Copies                 // beside the claim into which is restored
	Cache              *Cache                 // nil: caches live in the mover's own file system
}

// LoadAffinity is where movers may run. Several that apply are alternatives; those of the volume's storage
// class are preferred to those without a class.
type LoadAffinity struct {
	StorageClass string // empty: for classes that no other entry names
	Nodes        metav1.LabelSelector
}

// BackupClaim is how the volume is made that a snapshot is read from (backupPVC of the node-agent ConfigMap).
type BackupClaim struct {
	StorageClass    string // empty: that of the source volume
	ReadOnly        bool   // the claim asks for ReadOnlyMany, and nothing else
	SPCNoRelabeling bool   // SELinux type spc_t; honoured with ReadOnly only, as in Velero
	Annotations     map[string]string
	Copies
}

// Cache is the volume in which a restore caches (cachePVC of the node-agent ConfigMap, and cacheLimitMB of the
// backup repository ConfigMap).
type Cache struct {
	StorageClass string
	Threshold    int64 // bytes; snapshots that are known to be smaller need no cache volume
	Limit        int64 // bytes that the mover may keep in its cache
}
