package config

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Config is what the node-agent ConfigMap means for one node. The names are those of Velero's
// node-agent-config (velero-protocol 5.3).
type Config struct {
	Limits
	LoadAffinity       []LoadAffinity
	BackupPVC          map[string]BackupPVC // by the storage class of the source volume
	RestorePVC         RestorePVC
	CachePVC           *CachePVC                   // nil: caches live in the mover's own file system
	Resources          corev1.ResourceRequirements // of every mover
	PriorityClassName  string                      // as configured; whether it is in force is for priority to say
	PrivilegedFsBackup bool                        // movers of pod volumes run privileged
	PodLabels          map[string]string           // of every mover
	PodAnnotations     map[string]string           // of every mover
}

// Limits is how much may be done at once. All numbers are movers.
type Limits struct {
	Concurrency        int // on this node
	GlobalConcurrency  int // on a node for which no rule says otherwise
	MaxConcurrency     int // the largest that any node may have
	PrepareQueueLength int // accepted and prepared in the whole cluster; 0: no limit
}

// LoadAffinity is where movers of a storage class may run. Several for one class are alternatives.
type LoadAffinity struct {
	StorageClass string // empty: for classes that no other entry names
	NodeSelector metav1.LabelSelector
}

// BackupPVC is how the volume that a snapshot is read from is made.
type BackupPVC struct {
	StorageClass    string // empty: that of the source volume
	ReadOnly        bool
	SPCNoRelabeling bool // SELinux type spc_t; Velero honours it with ReadOnly only
	Annotations     map[string]string
}

// RestorePVC is how a volume is restored into.
type RestorePVC struct {
	IgnoreDelayBinding bool // do not wait for the first consumer
}

// CachePVC is the volume that a restore caches in.
type CachePVC struct {
	StorageClass        string
	ResidentThresholdMB int64 // smaller snapshots need no cache volume; MiB, as Velero counts
}

// Defaults are Velero's, for a ConfigMap that says nothing.
func Defaults() Config {
	return Config{Limits: Limits{Concurrency: 1, GlobalConcurrency: 1, MaxConcurrency: 1}}
}
