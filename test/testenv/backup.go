package testenv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

const (
	// defaultLocation is the storage location of a backup that names none.
	defaultLocation = "default"
	// snapshotTimeout is the server's default timeout for snapshot operations.
	snapshotTimeout = 10 * time.Minute
	// pvcNameAnnotation is PVCNameAnnotation of Velero's pkg/podvolume/configs. No package with few dependencies
	// exports it.
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
	wanted := podVolumeBackup(backup, pod, volume, claim)
	return create(ctx, e, e.Velero, podVolumeBackups, wanted, change)
}

func podVolumeBackup(
	backup *velerov1.Backup, pod *corev1.Pod, volume string, claim *corev1.PersistentVolumeClaim,
) *velerov1.PodVolumeBackup {
	created := &velerov1.PodVolumeBackup{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: backup.Name + "-", Namespace: backup.Namespace,
			Labels:          labelsOfBackup(backup),
			OwnerReferences: ownedBy("Backup", backup),
		},
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
		created.Annotations = map[string]string{pvcNameAnnotation: claim.Name}
		created.Labels[velerov1.PVCUIDLabel] = string(claim.UID)
		created.Spec.Tags["pvc-uid"] = string(claim.UID)
	}
	return created
}

// DataUpload creates the resource for the snapshot of a claim, as Velero's server does. It adds the storage class of
// the claim to the snapshot's specification. Each function of change may modify it first.
func (e *Env) DataUpload(
	ctx context.Context, backup *velerov1.Backup, claim *corev1.PersistentVolumeClaim,
	snapshot velerov2alpha1.CSISnapshotSpec, change ...func(*velerov2alpha1.DataUpload),
) (*velerov2alpha1.DataUpload, error) {
	snapshot.StorageClass = ptr.Deref(claim.Spec.StorageClassName, "")
	wanted := &velerov2alpha1.DataUpload{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: backup.Name + "-", Namespace: backup.Namespace,
			Labels: labelsOfBackup(backup), OwnerReferences: ownedBy("Backup", backup),
		},
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

func labelsOfBackup(backup *velerov1.Backup) map[string]string {
	return map[string]string{
		velerov1.BackupNameLabel: labelValue(backup.Name), velerov1.BackupUIDLabel: string(backup.UID),
	}
}

// ownedBy returns the owner reference of resources that Velero's server creates for a backup or a restore.
func ownedBy(kind string, owner metav1.Object) []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: velerov1.SchemeGroupVersion.String(), Kind: kind,
		Name: owner.GetName(), UID: owner.GetUID(), Controller: new(true),
	}}
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
