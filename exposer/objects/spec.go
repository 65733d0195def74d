package objects

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// MoverSpec is what one custom resource asks to be moved, and by which mover. Together with the cluster and the
// settings it determines the exposure completely.
type MoverSpec struct {
	Name, Namespace string                  // of the custom resource; the exposed objects have the same
	UID             types.UID               // of the custom resource; names container, volume and mount path
	GVK             schema.GroupVersionKind // of the custom resource: informer objects do not carry it
	PodLabel        string                  // the label by which Velero finds a kind's pods
	Attempt         int                     // number of earlier restarts of the mover
	ExposingNode    string                  // the node whose agent exposes it

	Command        []string // arguments of /velero, except those that depend on the volume
	PassVolumeMode bool     // the command takes --volume-mode
	Group          string   // value of api.LabelPodGroup, over which movers spread; empty for none
	OS             corev1.OSName
	SnapshotSize   int64 // of the kopia snapshot to restore, in bytes; 0: not known
	Restores       bool  // it writes to the volume, and may have a cache volume

	Source Source
}

// Source is the volume to move, as the custom resource names it. Exactly one field is set.
type Source struct {
	PodVolume *PodVolumeSource
	Snapshot  *SnapshotSource
	Target    *TargetSource
}

// PodVolumeSource is a volume of a running pod.
type PodVolumeSource struct {
	Pod    corev1.ObjectReference
	Volume string // name of the volume in the pod
}

// SnapshotSource is a VolumeSnapshot to read.
type SnapshotSource struct {
	Namespace    string // of snapshot and claim
	Snapshot     string // name of the VolumeSnapshot
	Class        string // VolumeSnapshotClass, as the DataUpload names it
	Claim        string // the claim of the snapshotted volume
	StorageClass string // of that claim, as the DataUpload names it
}

// TargetSource is the target claim of a restore. The claim is unbound: the restored volume is bound to it in the
// end.
type TargetSource struct {
	Namespace, Claim string
}

// Settings are the configuration of movers and their volumes.
type Settings struct {
	PriorityClass string // in force, not merely configured; empty for none
	Resources     corev1.ResourceRequirements
	Labels        map[string]string
	Annotations   map[string]string
	Tolerations   []corev1.Toleration // in addition to inherited ones

	Privileged         bool // pod volume movers: required where security modules block root from other pods' files
	LoadAffinity       []LoadAffinity
	BackupClaims       map[string]BackupClaim // by the storage class of the source volume
	IgnoreDelayBinding bool                   // restore without waiting for the target claim's first consumer
	RestoreCopies      Copies                 // objects to copy next to the restore claim
	Cache              *Cache                 // nil: caches are in the mover's own file system
}

// LoadAffinity restricts the nodes of movers. Several matching entries are alternatives. Entries for the volume's
// storage class take precedence over entries without a class.
type LoadAffinity struct {
	StorageClass string               `json:"storageClass,omitempty"` // empty: for classes that no other entry names
	Nodes        metav1.LabelSelector `json:"nodeSelector"`
}

// BackupClaim configures the volume that is created from a snapshot and read (backupPVC of the node-agent
// ConfigMap).
type BackupClaim struct {
	StorageClass    string            `json:"storageClass,omitempty"`    // empty: that of the source volume
	ReadOnly        bool              `json:"readOnly,omitempty"`        // the claim asks for ReadOnlyMany only
	SPCNoRelabeling bool              `json:"spcNoRelabeling,omitempty"` // SELinux type spc_t; applied with ReadOnly only, as in Velero
	Annotations     map[string]string `json:"annotations,omitempty"`
	Copies
}

// Cache configures the cache volume of a restore (cachePVC of the node-agent ConfigMap, and cacheLimitMB of the
// backup repository ConfigMap).
type Cache struct {
	StorageClass string
	Threshold    int64 // bytes; snapshots that are known to be smaller need no cache volume
	Limit        int64 // bytes that the mover may keep in its cache
}

func ownerReference(move MoverSpec) metav1.OwnerReference {
	version, kind := move.GVK.ToAPIVersionAndKind()
	return metav1.OwnerReference{APIVersion: version, Kind: kind, Name: move.Name, UID: move.UID, Controller: new(true)}
}

// Copies are names of Secrets and ConfigMaps that a CSI driver reads in the namespace of a claim to provision its
// volume, such as the key of an encrypted volume (secretNames and configMapNames of the node-agent ConfigMap,
// Velero #9879).
type Copies struct {
	SecretNames    []string `json:"secretNames,omitempty"`
	ConfigMapNames []string `json:"configMapNames,omitempty"`
}
