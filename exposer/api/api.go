// Package api holds the names that Lateen shares with other programs through the API server: the kinds of custom
// resources that move data, labels, annotations and finalizers. It decides nothing, and every package may import it.
package api

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Kind is a row of the table of kinds: a custom resource of Velero that moves data (velero-protocol 0).
type Kind struct {
	GVK       schema.GroupVersionKind
	Name      string // singular name of the resource: label value in metrics, and the name of its queue
	Resource  string // plural name of the resource
	ShortName string // in the commands of Lateen, and in Velero's CRDs since its development branch of August 2026
	PodLabel  string // the label by which Velero finds its mover pods
	Finalizer string // Velero's; the agents remove it
	// Metric is the name of the kind in Velero's metrics podVolume_<name>_success_total, failure and cancel; empty
	// if Velero has none.
	Metric   string
	Restores bool // its movers write to a volume
	Rebinds  bool // the restored volume must be rebound to the target claim
}

// Kinds returns the table of kinds, in the order in which a backup and its restore use them.
func Kinds() []Kind {
	return []Kind{PodVolumeBackup(), PodVolumeRestore(), DataUpload(), DataDownload()}
}

// PodVolumeBackup returns the kind that backs up a volume of a running pod.
func PodVolumeBackup() Kind {
	return Kind{
		GVK: velerov1.SchemeGroupVersion.WithKind("PodVolumeBackup"), Name: "podvolumebackup", Resource: "podvolumebackups",
		ShortName: "pvb", PodLabel: velerov1.PVBLabel, Finalizer: FinalizerPodVolume,
	}
}

// PodVolumeRestore returns the kind that restores into a volume of a pod.
func PodVolumeRestore() Kind {
	return Kind{
		GVK: velerov1.SchemeGroupVersion.WithKind("PodVolumeRestore"), Name: "podvolumerestore", Resource: "podvolumerestores",
		ShortName: "pvr", PodLabel: velerov1.PVRLabel, Finalizer: FinalizerPodVolume, Restores: true,
	}
}

// DataUpload returns the kind that backs up a CSI snapshot.
func DataUpload() Kind {
	return Kind{
		GVK: velerov2alpha1.SchemeGroupVersion.WithKind("DataUpload"), Name: "dataupload", Resource: "datauploads",
		ShortName: "du", PodLabel: velerov1.DataUploadLabel, Finalizer: FinalizerData, Metric: "data_upload",
	}
}

// DataDownload returns the kind that restores into a new volume, which is then rebound to the target claim.
func DataDownload() Kind {
	return Kind{
		GVK: velerov2alpha1.SchemeGroupVersion.WithKind("DataDownload"), Name: "datadownload", Resource: "datadownloads",
		ShortName: "dd", PodLabel: velerov1.DataDownloadLabel, Finalizer: FinalizerData, Metric: "data_download",
		Restores: true, Rebinds: true,
	}
}

// GVR returns the resource with its group and version.
func (k Kind) GVR() schema.GroupVersionResource {
	return k.GVK.GroupVersion().WithResource(k.Resource)
}

// CRD returns the name of the CustomResourceDefinition, which is also the resource with its group, as in RBAC.
func (k Kind) CRD() string { return k.GVR().GroupResource().String() }

// Finalizers of Velero on transfers.
const (
	FinalizerPodVolume = "velero.io/pod-volume-finalizer"           // PodVolumeBackups and PodVolumeRestores
	FinalizerData      = "velero.io/data-upload-download-finalizer" // DataUploads and DataDownloads
)

// LabelValue returns a valid label value for any name. A name longer than Kubernetes allows (63) becomes its first
// 54 characters, a dash and 8 hex digits of its SHA-256.
func LabelValue(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:54] + "-" + hex.EncodeToString(sum[:4])
}

// Prefix is the domain of Lateen's own labels and annotations.
const Prefix = "lateen.dev/"

// Labels of every object that Lateen creates.
const (
	LabelMover    = "lateen.dev/mover"     // "true"
	LabelOwnerUID = "lateen.dev/owner-uid" // UID of the custom resource that it was created for
	LabelExposer  = "lateen.dev/exposer"   // the node whose agent exposes it
)

// Labels of single objects.
const (
	// LabelKept is on volumes that hold restored data and could not be rebound: no controller may delete them.
	LabelKept = "lateen.dev/kept"
	// LabelRebind is on a volume that is rebound: UID of the DataDownload. It stays, as a record of the rebind.
	LabelRebind = "lateen.dev/rebind"
	// LabelDone is on transfers that are terminal and cleaned up; "true". Nothing that lists transfers selects them, so
	// the thousands that stay until their backup expires cost nothing.
	LabelDone = "lateen.dev/done"
	// LabelNode is on transfers that an agent acts on: its node, as a label value.
	LabelNode = "lateen.dev/node"
	// LabelCopy is on Secrets and ConfigMaps in Velero's namespace that are copies for claims; "true".
	LabelCopy = "lateen.dev/copy"
	// LabelInstalled marks only objects that `lateen install` created. Its value is Velero's namespace. Existing
	// objects do not get it, so `lateen uninstall` keeps them.
	LabelInstalled = "lateen.dev/installed-for"
	// LabelVerify is on what `lateen verify` creates: the name of the Backup, as a label value. A DataDownload with it restores
	// into a scratch claim, which is named after it.
	LabelVerify = "lateen.dev/verify"
	// LabelAgent is on the pods of Lateen's agents that run with the arguments of Velero's agent; "true".
	LabelAgent = "lateen.dev/agent"
)

// ScratchSuffix follows the name of a DataDownload in the name of its scratch claim.
const ScratchSuffix = "-scratch"

// SelectUndone selects the transfers that may still need an action.
const SelectUndone = "!" + LabelDone

// Annotations of a transfer, in which Lateen stores its own state.
const (
	AnnotationRestarts = "lateen.dev/mover-restarts"
	AnnotationMoved    = "lateen.dev/moved"   // time at which the mover of a restore succeeded (RFC 3339)
	AnnotationExposer  = "lateen.dev/exposer" // node of the Lateen agent that first took part; removed after cleanup
	AnnotationFailure  = "lateen.dev/failure" // why it is Failed: a transfer.Reason

	// AnnotationStorageClass is that of the claim that a DataDownload restores, from its acceptance to its cleanup: a later coordinator
	// does not watch the claim, and counts the transfers of each storage class.
	AnnotationStorageClass = "lateen.dev/storage-class"
)

// AnnotationAttempt is the number of restarts before this mover was created. It distinguishes a mover that was
// given up from its replacement of the same name.
const AnnotationAttempt = "lateen.dev/attempt"

// AnnotationCopyOf is the namespace/name of the original of an object with LabelCopy.
const AnnotationCopyOf = "lateen.dev/copy-of"

// AnnotationReclaimPolicy is the original reclaim policy of a volume that is rebound; it is removed when the policy
// is restored.
const AnnotationReclaimPolicy = "lateen.dev/reclaim-policy"

// Annotations of a backup VolumeSnapshot, set at its creation. Every agent that finds it can continue or undo the
// hand-over without other state.
const (
	AnnotationSourceContent  = "lateen.dev/source-content"  // name of the original VolumeSnapshotContent
	AnnotationSourceSnapshot = "lateen.dev/source-snapshot" // namespace/name of the original VolumeSnapshot
	AnnotationRestoreSize    = "lateen.dev/restore-size"    // status.restoreSize of the original; absent if it has none
)

// Annotations of maintenance jobs, for the agent that is the coordinator when they finish.
const (
	// AnnotationRepositoryUID is the UID of the BackupRepository that a job was created for. It replaces an owner
	// reference: the garbage collector would delete the job with its repository, and Velero's server polls a deleted
	// job for ever (W42).
	AnnotationRepositoryUID = "lateen.dev/repository-uid"
	AnnotationKeep          = "lateen.dev/keep-latest"   // number of finished jobs of the repository that are kept
	AnnotationFactor        = "lateen.dev/memory-factor" // factor of the configured memory limit for the job
	// AnnotationFailures is the number of consecutive failures of the repository before the job. The history in the
	// repository is not enough: the releases of Velero's server cut it to 3 entries.
	AnnotationFailures = "lateen.dev/failures"
	// AnnotationVerdict is a Verdict: the result of the job, once it is recorded in the history of its repository
	// and counted. Jobs of Velero's server get it too.
	AnnotationVerdict = "lateen.dev/verdict"
	// AnnotationReleased is the time at which an unfinished job was marked as failed (RFC 3339).
	AnnotationReleased = "lateen.dev/released"
)

// Annotations of the pod of an agent. Each is absent while it does not apply.
const (
	AnnotationClassFallback    = "lateen.dev/priority-class-fallback" // why movers run without the configured class: a priority.Reason
	AnnotationConfigNotApplied = "lateen.dev/config-not-applied"      // why the last edit of the node-agent ConfigMap is not in force as a whole
)

// Annotations of an adopted DaemonSet, as JSON.
const (
	AnnotationAdopted     = "lateen.dev/adopted-from" // the original template
	AnnotationAdoptedArgs = "lateen.dev/adopted-args" // the arguments that lateen adopt added to those of the agent
)

// Labels of Velero that Lateen sets or reads.
const (
	// LabelExposing is on transfers that are being prepared; Velero's agents count by it.
	LabelExposing = "velero.io/expose-on-going"
	// LabelExclude keeps Velero's server from backing up an object (its ExcludeFromBackupLabel). Objects of a
	// transfer do not exist any more when a backup of Velero's namespace is restored.
	LabelExclude = "velero.io/exclude-from-backup"
	// LabelCopiedByVelero is on the copies of Velero's agent (its BackupPVCSecretLabel).
	LabelCopiedByVelero = "velero.io/backup-pvc-secret"
	// LabelRepository is the label by which Velero's server finds the maintenance jobs of a repository (its
	// RepositoryNameLabel).
	LabelRepository = "velero.io/repo-name"
	// LabelPodGroup is the label by which the scheduler finds the movers over which it spreads new ones (its
	// ExposerPodGroupLabel).
	LabelPodGroup = "velero.io/exposer-pod-group"
	// LabelRole is on the pods of node-agents, with the value RoleNodeAgent. Velero's server selects by it (its
	// pkg/nodeagent).
	LabelRole     = "role"
	RoleNodeAgent = "node-agent"
)

// Names in the manifests of Velero.
const (
	// DefaultNamespace is the default namespace of Velero.
	DefaultNamespace = "velero"
	// VeleroDeployment is the Deployment of Velero's server, and the name of its container.
	VeleroDeployment = "velero"
	// DaemonSetName lets Velero's server detect a node-agent before it creates pod volume backups: its pkg/nodeagent
	// gets the DaemonSet by this name and lists its pods by LabelRole. It is also the default template of movers.
	DaemonSetName = "node-agent"
	// WindowsDaemonSetName is the DaemonSet of the agents on Windows nodes.
	WindowsDaemonSetName = "node-agent-windows"
	// HostPodsVolume is the DaemonSet's volume of the kubelet's pods directory. The agent reads the path of the directory
	// from the volume, even if it does not mount it. Without the volume, it is the kubelet's default.
	HostPodsVolume = "host-pods"
	// HostPodsMount is the mount path of that directory if the agent searches for volumes itself.
	HostPodsMount = "/host_pods"
)

// RunsServer reports whether a container runs Velero's server.
func RunsServer(container corev1.Container) bool {
	description := slices.Concat(container.Command, container.Args)
	at := slices.Index(description, "server")
	return at > 0 && path.Base(description[at-1]) == "velero"
}

// ServerContainer returns the container that runs Velero's server, else the one called velero, as with a wrapper, else the first;
// none for a pod without containers.
func ServerContainer(pod corev1.PodSpec) []corev1.Container {
	if len(pod.Containers) == 0 {
		return nil
	}
	at := slices.IndexFunc(pod.Containers, RunsServer)
	if at < 0 {
		at = max(0, slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == VeleroDeployment }))
	}
	return pod.Containers[at : at+1]
}
