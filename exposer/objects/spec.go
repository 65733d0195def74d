// Package objects builds the objects of an exposure and reads their state. It is pure: it calls no API, reads no
// clock and logs nothing.
package objects

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
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
	BlockMover     bool  // its mover is Velero's for blocks: the volume is a device to it, whatever the mode of its claim

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
	Volume           string // the existing PersistentVolume that is restored in place; empty for a new one
	MoverNode        string // the node to which the mover's volume is attached; empty before the mover starts
	Scratch          bool   // for `lateen verify`: the claim has no consumer, and a volume that was provisioned for it is deleted with it
	SourceNamespace  string // that was backed up
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
	SnapshotMetadata   SnapshotMetadata
}

// SnapshotMetadata configures how block movers ask CSI's snapshot metadata service for changed blocks
// (csiSnapshotMetadataServiceConfigs of the node-agent ConfigMap).
type SnapshotMetadata struct {
	SAName string `json:"saName,omitempty"` // the ServiceAccount whose token they send; empty: their own
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
	StorageClass    string `json:"storageClass,omitempty"`    // empty: that of the source volume
	ReadOnly        bool   `json:"readOnly,omitempty"`        // the claim asks for ReadOnlyMany only
	SPCNoRelabeling bool   `json:"spcNoRelabeling,omitempty"` // SELinux type spc_t; applied with ReadOnly only, as in Velero
	// ReadWriteOncePod has the claim ask for ReadWriteOncePod only, unless ReadOnly is set. Then the kubelet sets the SELinux label
	// for the whole volume, with a driver that supports it (Velero #10339).
	ReadWriteOncePod bool              `json:"readWriteOncePod,omitempty"`
	Annotations      map[string]string `json:"annotations,omitempty"`
	Copies
}

// Cache configures the cache volume of a restore (cachePVC of the node-agent ConfigMap, and cacheLimitMB of the
// backup repository ConfigMap).
type Cache struct {
	StorageClass string
	Threshold    int64 // bytes; snapshots that are known to be smaller need no cache volume
	Limit        int64 // bytes that the mover may keep in its cache
}

func ownerReference(spec MoverSpec) metav1.OwnerReference {
	version, kind := spec.GVK.ToAPIVersionAndKind()
	return metav1.OwnerReference{APIVersion: version, Kind: kind, Name: spec.Name, UID: spec.UID, Controller: new(true)}
}

// Copies are names of Secrets and ConfigMaps that a CSI driver reads in the namespace of a claim to provision its
// volume, such as the key of an encrypted volume (secretNames and configMapNames of the node-agent ConfigMap,
// Velero #9879).
type Copies struct {
	SecretNames    []string `json:"secretNames,omitempty"`
	ConfigMapNames []string `json:"configMapNames,omitempty"`
}

// Plan is the list of objects that are created for a mover, in order of creation.
type Plan struct {
	Claims []*corev1.PersistentVolumeClaim
	Pod    *corev1.Pod
}

// PlanOf is pure: the same spec, volume info, template and settings yield the same objects.
func PlanOf(spec MoverSpec, info VolumeInfo, template Template, settings Settings) Plan {
	plan := Plan{}
	volume := hostVolume(spec, info)
	switch {
	case spec.Source.Snapshot != nil:
		claim := backupClaim(spec, info, settings)
		plan.Claims = append(plan.Claims, claim)
		volume = claimVolume(spec, claim)
	case spec.Source.Target != nil:
		claim := restoreClaim(spec, info)
		plan.Claims = append(plan.Claims, claim)
		volume = claimVolume(spec, claim)
	}
	if cache := cacheClaim(spec, info, settings); cache != nil {
		plan.Claims = append(plan.Claims, cache)
	}
	plan.Pod = moverPod(spec, info, template, settings, volume)
	return plan
}

// Template is the part that every mover copies from the pod template of the node-agent DaemonSet, or of another
// workload that the operator names. It is a value: builders copy from it and never write to it.
type Template struct {
	Image            string                        // the Velero image; movers run its /velero
	ServiceAccount   string                        // never the agent's own
	Env              []corev1.EnvVar               // includes NODE_NAME and VELERO_NAMESPACE
	EnvFrom          []corev1.EnvFromSource        // as in the template
	Volumes          []corev1.Volume               // without host-pods and host-plugins
	VolumeMounts     []corev1.VolumeMount          // those of Volumes
	DNSPolicy        corev1.DNSPolicy              // as in the template
	DNSConfig        *corev1.PodDNSConfig          // as in the template
	ImagePullSecrets []corev1.LocalObjectReference // as in the template
	LogArgs          []string                      // --log-level and --log-format, one token each
	Labels           map[string]string             // identity labels that clouds require
	Annotations      map[string]string             // identity annotations that clouds require
	Tolerations      []corev1.Toleration           // spot nodes and CriticalAddonsOnly

	// The nodes of agents, from their DaemonSet, even if another workload is the template. A mover without a fixed
	// node needs a node with an agent to follow it (velero-protocol W33).
	AgentNodeSelector map[string]string    // all of these labels; empty for any
	AgentAffinity     *corev1.NodeSelector // required node affinity: one of its terms; nil for none
	AgentTolerations  []corev1.Toleration  // the taints that agents tolerate
}

// velerosAgent are the arguments that start Velero's binary as a node-agent. Velero's installer, its Helm chart and
// operators all use them. Lateen's manifests do not. A Lateen agent that is started with them labels its pod, because
// names and images do not distinguish the two.
const velerosAgent = "node-agent server"

// IsVelerosAgent reports whether a node-agent pod runs Velero's binary, not Lateen's.
func IsVelerosAgent(pod *corev1.Pod) bool {
	return pod.Labels[api.LabelAgent] != "true" && slices.ContainsFunc(pod.Spec.Containers, func(container corev1.Container) bool {
		return strings.Contains(strings.Join(slices.Concat(container.Command, container.Args), " "), velerosAgent)
	})
}

// OwnerLabels returns the labels of an object that is created for a transfer.
func OwnerLabels(owner types.UID, acceptor string) map[string]string {
	return map[string]string{
		api.LabelMover:    "true",
		api.LabelOwnerUID: string(owner),
		api.LabelExposer:  api.LabelValue(acceptor),
	}
}

// OwnedBy reports whether the custom resource with this UID is the controller of the object. Only this check
// permits adopting or deleting an object: any client can set labels, and names are reused.
func OwnedBy(object metav1.Object, owner types.UID) bool {
	controller := metav1.GetControllerOfNoCopy(object)
	return controller != nil && controller.UID == owner
}

// Attempt reads AnnotationAttempt. Movers and claims of Velero's own agent have none and count as those of the first
// attempt.
func Attempt(object metav1.Object) int {
	n, err := strconv.Atoi(object.GetAnnotations()[api.AnnotationAttempt])
	if err != nil {
		return 0
	}
	return n
}

// ofAttempt adds the attempt to annotations.
func ofAttempt(spec MoverSpec, annotations map[string]string) map[string]string {
	return Merged(annotations, map[string]string{api.AnnotationAttempt: strconv.Itoa(spec.Attempt)})
}

// Merged returns a new map in which later maps win.
func Merged(layers ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, layer := range layers {
		maps.Copy(all, layer)
	}
	return all
}

// IsReady reports whether a Node has condition Ready.
func IsReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

// IsDeleting reports whether an object has a deletionTimestamp, so that only its finalizers keep it.
func IsDeleting(object metav1.Object) bool { return object.GetDeletionTimestamp() != nil }
