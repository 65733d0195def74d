package testenv

import (
	"context"
	"fmt"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

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
func (e *Env) RestorePod(
	ctx context.Context, restore *velerov1.Restore, name, node string, volumes ...corev1.Volume,
) (*corev1.Pod, error) {
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
	created, err := e.Kube.CoreV1().Pods(e.Apps).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create restored pod: %w", err)
	}
	return created, nil
}

// PodVolumeRestore creates the resource for one volume of a restored pod, as Velero's server does. Each function of
// change may modify it first.
func (e *Env) PodVolumeRestore(
	ctx context.Context, restore *velerov1.Restore, pod *corev1.Pod, volume, snapshotID, sourceNamespace string,
	change ...func(*velerov1.PodVolumeRestore),
) (*velerov1.PodVolumeRestore, error) {
	claim, err := e.claimOfVolume(ctx, pod, volume)
	if err != nil {
		return nil, fmt.Errorf("make pod volume restore: %w", err)
	}
	wanted := &velerov1.PodVolumeRestore{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: restore.Name + "-", Namespace: restore.Namespace,
			Labels: labelsOfRestore(restore), OwnerReferences: ownedBy("Restore", restore),
		},
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
func (e *Env) TargetClaim(
	ctx context.Context, name, class string, change ...func(*corev1.PersistentVolumeClaim),
) (*corev1.PersistentVolumeClaim, error) {
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
	ctx context.Context, restore *velerov1.Restore, claim *corev1.PersistentVolumeClaim, snapshotID string,
	change ...func(*velerov2alpha1.DataDownload),
) (*velerov2alpha1.DataDownload, error) {
	wanted := &velerov2alpha1.DataDownload{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: restore.Name + "-", Namespace: restore.Namespace,
			Labels: labelsOfRestore(restore), OwnerReferences: ownedBy("Restore", restore),
		},
		Spec: velerov2alpha1.DataDownloadSpec{
			TargetVolume:          velerov2alpha1.TargetVolumeSpec{PVC: claim.Name, Namespace: claim.Namespace},
			BackupStorageLocation: defaultLocation, SnapshotID: snapshotID, SourceNamespace: claim.Namespace,
			OperationTimeout: metav1.Duration{Duration: snapshotTimeout}, NodeOS: velerov2alpha1.NodeOSLinux,
		},
	}
	wanted.Labels[velerov1.AsyncOperationIDLabel] = operationID(velerov1.AsyncOperationIDPrefixDataDownload, restore.UID, claim.UID)
	return create(ctx, e, e.VeleroAlpha, dataDownloads, wanted, change)
}

func labelsOfRestore(restore *velerov1.Restore) map[string]string {
	return map[string]string{
		velerov1.RestoreNameLabel: labelValue(restore.Name), velerov1.RestoreUIDLabel: string(restore.UID),
	}
}
