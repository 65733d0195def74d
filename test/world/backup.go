package world

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// defaultLocation is the backup storage location that a backup has if it names none.
	defaultLocation = "default"
	// pvcNameAnnotation is PVCNameAnnotation of Velero's pkg/podvolume/configs, which nothing light exports.
	pvcNameAnnotation = "velero.io/pvc-name"

	podVolumeBackups = "podvolumebackups"
)

// Backup creates a backup that is being worked on, with the timeouts that Velero's server fills in. It owns
// its pod volume backups; the garbage collector deletes them with it.
func (w *World) Backup(ctx context.Context, name string) (*velerov1.Backup, error) {
	backup := &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: w.Namespace, Labels: map[string]string{velerov1.StorageLocationLabel: defaultLocation},
		},
		Spec: velerov1.BackupSpec{
			StorageLocation: defaultLocation, IncludedNamespaces: []string{w.Apps},
			TTL:                metav1.Duration{Duration: 30 * 24 * time.Hour},
			CSISnapshotTimeout: metav1.Duration{Duration: 10 * time.Minute}, ItemOperationTimeout: metav1.Duration{Duration: 4 * time.Hour},
		},
		Status: velerov1.BackupStatus{
			Phase: velerov1.BackupPhaseInProgress, Version: 1, FormatVersion: "1.1.0", StartTimestamp: new(metav1.Now()),
		},
	}
	made := &velerov1.Backup{}
	return made, w.create(ctx, "backups", backup, made)
}

// PodVolumeBackup creates the resource as Velero's server does for one volume of a pod that runs: named after
// the backup, with its labels, owner and tags, and no phase. Each of change may alter it first.
func (w *World) PodVolumeBackup(
	ctx context.Context, backup *velerov1.Backup, pod *corev1.Pod, volume string, change ...func(*velerov1.PodVolumeBackup),
) (*velerov1.PodVolumeBackup, error) {
	index := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume })
	if index < 0 {
		return nil, fmt.Errorf("make pod volume backup: pod %s has no volume %s", pod.Name, volume)
	}
	claim, err := w.claimOf(ctx, pod.Namespace, pod.Spec.Volumes[index])
	if err != nil {
		return nil, err
	}
	wanted := podVolumeBackup(backup, pod, volume, claim)
	for _, alter := range change {
		alter(wanted)
	}
	made := &velerov1.PodVolumeBackup{}
	return made, w.create(ctx, podVolumeBackups, wanted, made)
}

func podVolumeBackup(
	backup *velerov1.Backup, pod *corev1.Pod, volume string, claim *corev1.PersistentVolumeClaim,
) *velerov1.PodVolumeBackup {
	made := &velerov1.PodVolumeBackup{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: backup.Name + "-", Namespace: backup.Namespace,
			Labels: map[string]string{
				velerov1.BackupNameLabel: labelValue(backup.Name), velerov1.BackupUIDLabel: string(backup.UID),
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "Backup",
				Name: backup.Name, UID: backup.UID, Controller: new(true),
			}},
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
		made.Annotations = map[string]string{pvcNameAnnotation: claim.Name}
		made.Labels[velerov1.PVCUIDLabel] = string(claim.UID)
		made.Spec.Tags["pvc-uid"] = string(claim.UID)
	}
	return made
}

// labelValue shortens what is too long for a label as Velero does: the end gives way to six digits of a hash.
func labelValue(name string) string {
	if len(name) <= validation.DNS1035LabelMaxLength {
		return name
	}
	hash := sha256.Sum256([]byte(name))
	const digits = 6
	return name[:validation.DNS1035LabelMaxLength-digits] + hex.EncodeToString(hash[:])[:digits]
}

// GetPodVolumeBackup reads one from the API server.
func (w *World) GetPodVolumeBackup(ctx context.Context, name string) (*velerov1.PodVolumeBackup, error) {
	found := &velerov1.PodVolumeBackup{}
	err := w.Velero.Get().Namespace(w.Namespace).Resource(podVolumeBackups).Name(name).Do(ctx).Into(found)
	return found, err
}

// PatchPodVolumeBackup applies a JSON merge patch, status and all: these resources have no subresource.
func (w *World) PatchPodVolumeBackup(ctx context.Context, name, patch string) error {
	return w.Velero.Patch(types.MergePatchType).Namespace(w.Namespace).Resource(podVolumeBackups).Name(name).
		Body([]byte(patch)).Do(ctx).Error()
}

// CancelPodVolumeBackup asks for the end of it as Velero's server does.
func (w *World) CancelPodVolumeBackup(ctx context.Context, name string) error {
	return w.PatchPodVolumeBackup(ctx, name, `{"spec":{"cancel":true}}`)
}

// DeletePodVolumeBackup asks for its deletion, which finalizers may delay.
func (w *World) DeletePodVolumeBackup(ctx context.Context, name string) error {
	return w.Velero.Delete().Namespace(w.Namespace).Resource(podVolumeBackups).Name(name).Do(ctx).Error()
}
