package testenv

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/vmware-tanzu/velero/pkg/apis/velero/shared"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
)

// Kind is one of the four kinds of resources by which Velero's server requests a data transfer.
type Kind string

// The kinds, by their names in the API.
const (
	PodVolumeBackup  Kind = "PodVolumeBackup"
	PodVolumeRestore Kind = "PodVolumeRestore"
	DataUpload       Kind = "DataUpload"
	DataDownload     Kind = "DataDownload"
)

// Kinds returns all four kinds.
func Kinds() []Kind { return []Kind{PodVolumeBackup, PodVolumeRestore, DataUpload, DataDownload} }

// Resource returns the API resource of the kind.
func (k Kind) Resource() schema.GroupVersionResource {
	switch k {
	case PodVolumeBackup:
		return velerov1.SchemeGroupVersion.WithResource(podVolumeBackups)
	case PodVolumeRestore:
		return velerov1.SchemeGroupVersion.WithResource(podVolumeRestores)
	case DataUpload:
		return velerov2alpha1.SchemeGroupVersion.WithResource(dataUploads)
	default:
		return velerov2alpha1.SchemeGroupVersion.WithResource(dataDownloads)
	}
}

// Label returns the label of the kind's mover pods. Its value is the name of the resource.
func (k Kind) Label() string {
	switch k {
	case PodVolumeBackup:
		return velerov1.PVBLabel
	case PodVolumeRestore:
		return velerov1.PVRLabel
	case DataUpload:
		return velerov1.DataUploadLabel
	default:
		return velerov1.DataDownloadLabel
	}
}

// Phase is the phase of a transfer. Velero uses the same phases for every kind, and an empty one for new resources.
type Phase string

// The phases. The last three are terminal.
const (
	Accepted   Phase = "Accepted"
	Prepared   Phase = "Prepared"
	InProgress Phase = "InProgress"
	Completed  Phase = "Completed"
	Failed     Phase = "Failed"
	Canceled   Phase = "Canceled"
)

// Transfer has the common fields of the four kinds, and some fields of single kinds.
type Transfer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   TransferSpec   `json:"spec"`
	Status TransferStatus `json:"status"`
}

// TransferSpec is the request of Velero's server.
type TransferSpec struct {
	Cancel     bool                   `json:"cancel"`
	Node       string                 `json:"node"`       // of a PodVolumeBackup
	Pod        corev1.ObjectReference `json:"pod"`        // of a PodVolumeBackup or PodVolumeRestore
	Volume     string                 `json:"volume"`     // of that pod
	SnapshotID string                 `json:"snapshotID"` // of a restore
	// TargetVolume is the target of a DataDownload.
	TargetVolume velerov2alpha1.TargetVolumeSpec `json:"targetVolume"`
}

// TransferStatus is the state that the agent reports.
type TransferStatus struct {
	Phase               Phase                            `json:"phase"`
	Message             string                           `json:"message"`
	Node                string                           `json:"node"`       // not of a PodVolumeBackup
	SnapshotID          string                           `json:"snapshotID"` // of a backup
	AcceptedByNode      string                           `json:"acceptedByNode"`
	CompletionTimestamp *metav1.Time                     `json:"completionTimestamp"`
	Progress            shared.DataMoveOperationProgress `json:"progress"`
}

// Node returns the node of the transfer; "" if it has none yet.
func (t *Transfer) Node() string { return cmp.Or(t.Status.Node, t.Spec.Node) }

// Ended reports whether the phase is terminal.
func (p Phase) Ended() bool { return p == Completed || p == Failed || p == Canceled }

// Ended reports whether the transfer is in a terminal phase.
func Ended(transfer *Transfer) bool { return transfer.Status.Phase.Ended() }

// Settled reports whether the transfer is terminal and has no finalizer, so that it needs no further action.
func Settled(transfer *Transfer) bool { return Ended(transfer) && len(transfer.Finalizers) == 0 }

// In returns a condition: the transfer is in phase.
func In(phase Phase) func(*Transfer) bool {
	return func(transfer *Transfer) bool { return transfer.Status.Phase == phase }
}

// View reads a Transfer from a resource of any of the kinds. The error names a resource with an invalid field.
func View(resource *unstructured.Unstructured) (*Transfer, error) {
	transfer := &Transfer{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(resource.Object, transfer); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", resource.GetKind(), resource.GetName(), err)
	}
	return transfer, nil
}

// Transfers is the client of one kind of Velero's resources.
type Transfers struct {
	kind   Kind
	client dynamic.ResourceInterface
}

// Transfers returns the client of a kind in Velero's namespace.
func (e *Env) Transfers(kind Kind) Transfers {
	return Transfers{kind: kind, client: e.dynamic.Resource(kind.Resource()).Namespace(e.Namespace)}
}

// Get reads one transfer. It returns the error of the API server unwrapped.
func (t Transfers) Get(ctx context.Context, name string) (*Transfer, error) {
	found, err := t.client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return View(found)
}

// List reads all transfers of the kind.
func (t Transfers) List(ctx context.Context) ([]*Transfer, error) {
	list, err := t.client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list %ss: %w", t.kind, err)
	}
	found := make([]*Transfer, len(list.Items))
	for i := range list.Items {
		if found[i], err = View(&list.Items[i]); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Patch applies a JSON merge patch, including the status, because these resources have no status subresource. It
// returns the error of the API server unwrapped.
func (t Transfers) Patch(ctx context.Context, name, patch string) error {
	_, err := t.client.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// Cancel requests a cancel as Velero's server does.
func (t Transfers) Cancel(ctx context.Context, name string) error {
	return t.Patch(ctx, name, `{"spec":{"cancel":true}}`)
}

// Delete requests a deletion, which finalizers may delay.
func (t Transfers) Delete(ctx context.Context, name string) error {
	return t.client.Delete(ctx, name, metav1.DeleteOptions{})
}

// Wait returns the transfer with that name after done accepts it. The error contains the last observed state. A
// settled transfer that done rejects is an error at once.
func (t Transfers) Wait(ctx context.Context, name string, done func(*Transfer) bool) (*Transfer, error) {
	return t.WaitFor(ctx, Named(name), done)
}

// WaitFor returns the first transfer of a list that done accepts.
func (t Transfers) WaitFor(ctx context.Context, options metav1.ListOptions, done func(*Transfer) bool) (*Transfer, error) {
	found := &Transfer{}
	var unread error
	_, err := Wait(ctx, t.client, options, func(resource *unstructured.Unstructured) bool {
		found, unread = View(resource)
		return unread != nil || done(found)
	}, func(*unstructured.Unstructured) error {
		if Settled(found) {
			return fmt.Errorf("it has ended as %s", found.Status.Phase)
		}
		return nil
	})
	if err := cmp.Or(err, unread); err != nil {
		return nil, fmt.Errorf("wait for a %s: %w", t.kind, err)
	}
	return found, nil
}

// WaitGone waits until no transfer has that name.
func (t Transfers) WaitGone(ctx context.Context, name string) error {
	return WaitGone(ctx, t.client, Named(name))
}

// WaitNone waits until the label selector selects no transfer of now.
func (t Transfers) WaitNone(ctx context.Context, selector string) error {
	return WaitGone(ctx, t.client, metav1.ListOptions{LabelSelector: selector})
}

const (
	// defaultLocation is the storage location of a backup that names none.
	defaultLocation = "default"
	// snapshotTimeout is the server's default timeout for snapshot operations.
	snapshotTimeout = 10 * time.Minute
	// pvcNameAnnotation is PVCNameAnnotation of Velero's pkg/podvolume/configs. No package with few dependencies exports it.
	pvcNameAnnotation = "velero.io/pvc-name"

	podVolumeBackups  = "podvolumebackups"
	podVolumeRestores = "podvolumerestores"
	dataUploads       = "datauploads"
	dataDownloads     = "datadownloads"
)

// Backup creates a backup in progress, with the timeouts that Velero's server sets. It owns its pod volume backups,
// so the garbage collector deletes them with it.
func (e *Env) Backup(ctx context.Context, name string) (*velerov1.Backup, error) {
	backup := &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: e.Namespace, Labels: map[string]string{velerov1.StorageLocationLabel: defaultLocation},
		},
		Spec: velerov1.BackupSpec{
			StorageLocation: defaultLocation, IncludedNamespaces: []string{e.Apps},
			TTL:                metav1.Duration{Duration: 30 * 24 * time.Hour},
			CSISnapshotTimeout: metav1.Duration{Duration: snapshotTimeout}, ItemOperationTimeout: metav1.Duration{Duration: 4 * time.Hour},
		},
		Status: velerov1.BackupStatus{
			Phase: velerov1.BackupPhaseInProgress, Version: 1, FormatVersion: "1.1.0", StartTimestamp: new(metav1.Now()),
		},
	}
	return e.Backups().Create(ctx, backup, metav1.CreateOptions{})
}

// PodVolumeBackup creates the resource for one volume of a running pod, as Velero's server does: with the backup's
// name as prefix, its labels, owner and tags, and no phase. Each function of change may modify it first.
func (e *Env) PodVolumeBackup(
	ctx context.Context, backup *velerov1.Backup, pod *corev1.Pod, volume string, change ...func(*velerov1.PodVolumeBackup),
) (*velerov1.PodVolumeBackup, error) {
	claim, err := e.claimOfVolume(ctx, pod, volume)
	if err != nil {
		return nil, fmt.Errorf("make pod volume backup: %w", err)
	}
	wanted := &velerov1.PodVolumeBackup{
		ObjectMeta: ownedBy(backup, "Backup", velerov1.BackupNameLabel, velerov1.BackupUIDLabel),
		Spec: velerov1.PodVolumeBackupSpec{
			Node:   pod.Spec.NodeName,
			Pod:    corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Volume: volume, UploaderType: "kopia", BackupStorageLocation: backup.Spec.StorageLocation,
			Tags: map[string]string{
				"backup": backup.Name, "backup-uid": string(backup.UID),
				"ns": pod.Namespace, "pod": pod.Name, "pod-uid": string(pod.UID), "volume": volume,
			},
		},
	}
	if claim != nil {
		wanted.Annotations = map[string]string{pvcNameAnnotation: claim.Name}
		wanted.Labels[velerov1.PVCUIDLabel] = string(claim.UID)
		wanted.Spec.Tags["pvc-uid"] = string(claim.UID)
	}
	return create(ctx, e, e.Velero, podVolumeBackups, wanted, change)
}

// DataUpload creates the resource for the snapshot of a claim, as Velero's server does. It adds the storage class of
// the claim to the snapshot's specification. Each function of change may modify it first.
func (e *Env) DataUpload(
	ctx context.Context, backup *velerov1.Backup, claim *corev1.PersistentVolumeClaim, snapshot velerov2alpha1.CSISnapshotSpec, change ...func(*velerov2alpha1.DataUpload),
) (*velerov2alpha1.DataUpload, error) {
	snapshot.StorageClass = ptr.Deref(claim.Spec.StorageClassName, "")
	wanted := &velerov2alpha1.DataUpload{
		ObjectMeta: ownedBy(backup, "Backup", velerov1.BackupNameLabel, velerov1.BackupUIDLabel),
		Spec: velerov2alpha1.DataUploadSpec{
			SnapshotType: velerov2alpha1.SnapshotTypeCSI, CSISnapshot: &snapshot,
			SourcePVC: claim.Name, SourceNamespace: claim.Namespace, DataMover: backup.Spec.DataMover,
			BackupStorageLocation: backup.Spec.StorageLocation, OperationTimeout: backup.Spec.CSISnapshotTimeout,
		},
	}
	wanted.Labels[velerov1.PVCUIDLabel] = string(claim.UID)
	wanted.Labels[velerov1.AsyncOperationIDLabel] = operationID(velerov1.AsyncOperationIDPrefixDataUpload, backup.UID, claim.UID)
	return create(ctx, e, e.VeleroAlpha, dataUploads, wanted, change)
}

// ownedBy returns the metadata of resources that Velero's server creates for a backup or a restore.
func ownedBy(owner metav1.Object, kind, nameLabel, uidLabel string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		GenerateName: owner.GetName() + "-", Namespace: owner.GetNamespace(),
		Labels: map[string]string{nameLabel: labelValue(owner.GetName()), uidLabel: string(owner.GetUID())},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: velerov1.SchemeGroupVersion.String(), Kind: kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: new(true),
		}},
	}
}

// operationID returns the label value by which Velero's server finds its asynchronous operation.
func operationID(prefix velerov1.AsyncOperationIDPrefix, owner, claim types.UID) string {
	return labelValue(fmt.Sprintf("%s%s.%s", prefix, owner, claim))
}

// labelValue shortens a name that is too long for a label, as Velero does: six digits of a hash replace the end.
func labelValue(name string) string {
	if len(name) <= validation.DNS1035LabelMaxLength {
		return name
	}
	hash := sha256.Sum256([]byte(name))
	const digits = 6
	return name[:validation.DNS1035LabelMaxLength-digits] + hex.EncodeToString(hash[:])[:digits]
}

// WaitContainer is the init container that blocks a restored pod until its volumes are restored (WaitInitContainer of
// Velero's pkg/restorehelper).
const WaitContainer = "restore-wait"

// Restore creates a restore in progress of the backup with the same name. It owns its resources, so the garbage
// collector deletes them with it.
func (e *Env) Restore(ctx context.Context, name string) (*velerov1.Restore, error) {
	wanted := &velerov1.Restore{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: e.Namespace},
		Spec:       velerov1.RestoreSpec{BackupName: name, IncludedNamespaces: []string{e.Apps}},
		Status:     velerov1.RestoreStatus{Phase: velerov1.RestorePhaseInProgress, StartTimestamp: new(metav1.Now())},
	}
	return e.Restores().Create(ctx, wanted, metav1.CreateOptions{})
}

// RestorePod creates a pod in Apps as Velero's server restores it: a SourcePod whose first init container waits until
// its volumes are restored.
func (e *Env) RestorePod(ctx context.Context, restore *velerov1.Restore, name, node string, volumes ...corev1.Volume) (*corev1.Pod, error) {
	pod, err := e.appPod(ctx, name, node, volumes)
	if err != nil {
		return nil, err
	}
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	wait := corev1.Container{
		Name: WaitContainer, Image: defaultImage, Command: []string{"/velero-restore-helper"}, Args: []string{string(restore.UID)},
		Env: []corev1.EnvVar{
			{Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
			{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		},
		Resources: corev1.ResourceRequirements{Requests: room, Limits: room},
	}
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		wait.VolumeMounts = append(wait.VolumeMounts, corev1.VolumeMount{Name: mount.Name, MountPath: "/restores/" + mount.Name})
	}
	pod.Labels[velerov1.BackupNameLabel] = labelValue(restore.Spec.BackupName)
	pod.Labels[velerov1.RestoreNameLabel] = labelValue(restore.Name)
	pod.Spec.InitContainers = slices.Insert(pod.Spec.InitContainers, 0, wait)
	return e.Kube.CoreV1().Pods(e.Apps).Create(ctx, pod, metav1.CreateOptions{})
}

// PodVolumeRestore creates the resource for one volume of a restored pod, as Velero's server does. Each function of
// change may modify it first.
func (e *Env) PodVolumeRestore(
	ctx context.Context, restore *velerov1.Restore, pod *corev1.Pod, volume, snapshotID, sourceNamespace string, change ...func(*velerov1.PodVolumeRestore),
) (*velerov1.PodVolumeRestore, error) {
	claim, err := e.claimOfVolume(ctx, pod, volume)
	if err != nil {
		return nil, fmt.Errorf("make pod volume restore: %w", err)
	}
	wanted := &velerov1.PodVolumeRestore{
		ObjectMeta: ownedBy(restore, "Restore", velerov1.RestoreNameLabel, velerov1.RestoreUIDLabel),
		Spec: velerov1.PodVolumeRestoreSpec{
			Pod:    corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Volume: volume, SnapshotID: snapshotID, SourceNamespace: sourceNamespace,
			BackupStorageLocation: defaultLocation, UploaderType: "kopia",
		},
	}
	wanted.Labels[velerov1.PodUIDLabel] = string(pod.UID)
	if claim != nil {
		wanted.Labels[velerov1.PVCUIDLabel] = string(claim.UID)
	}
	return create(ctx, e, e.Velero, podVolumeRestores, wanted, change)
}

// TargetClaim creates a claim in Apps as Velero's server does for a data restore. Its selector allows the binding
// only of a volume created for it.
func (e *Env) TargetClaim(ctx context.Context, name, class string, change ...func(*corev1.PersistentVolumeClaim)) (*corev1.PersistentVolumeClaim, error) {
	const random = 5 // characters; GenerateNameRandomLength of Velero
	return e.CSIClaim(ctx, name, class, append([]func(*corev1.PersistentVolumeClaim){func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{
			velerov1.DynamicPVRestoreLabel: labelValue(fmt.Sprintf("%s.%s.%s", e.Apps, name, rand.String(random))),
		}}
	}}, change...)...)
}

// DataDownload creates the resource for a restored claim, as Velero's server does. The snapshot is from the claim's
// namespace. Each function of change may modify it first.
func (e *Env) DataDownload(
	ctx context.Context, restore *velerov1.Restore, claim *corev1.PersistentVolumeClaim, snapshotID string, change ...func(*velerov2alpha1.DataDownload),
) (*velerov2alpha1.DataDownload, error) {
	wanted := &velerov2alpha1.DataDownload{
		ObjectMeta: ownedBy(restore, "Restore", velerov1.RestoreNameLabel, velerov1.RestoreUIDLabel),
		Spec: velerov2alpha1.DataDownloadSpec{
			TargetVolume:          velerov2alpha1.TargetVolumeSpec{PVC: claim.Name, Namespace: claim.Namespace},
			BackupStorageLocation: defaultLocation, SnapshotID: snapshotID, SourceNamespace: claim.Namespace,
			OperationTimeout: metav1.Duration{Duration: snapshotTimeout}, NodeOS: velerov2alpha1.NodeOSLinux,
		},
	}
	wanted.Labels[velerov1.AsyncOperationIDLabel] = operationID(velerov1.AsyncOperationIDPrefixDataDownload, restore.UID, claim.UID)
	return create(ctx, e, e.VeleroAlpha, dataDownloads, wanted, change)
}
