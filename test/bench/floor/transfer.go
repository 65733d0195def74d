package floor

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

const (
	labelMover = "floor/mover"
	readHeader = 10 * time.Second
)

// now is the time of this moment, as patches have it.
func now() string { return time.Now().UTC().Format(time.RFC3339) }

// backUp runs a PodVolumeBackup with 6 writes: Accepted, pod, Prepared, InProgress, Completed, delete the pod.
func (a *agent) backUp(ctx context.Context, backup *velerov1.PodVolumeBackup) error {
	write := patch(ctx, a.velero.PodVolumeBackups(a.Namespace), backup.Name)
	if err := write(accepted(api.FinalizerPodVolume)); err != nil {
		return err
	}
	a.prepared <- struct{}{}
	defer func() { <-a.prepared }()
	source := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	pod := a.pod(backup, velerov1.PVBLabel, "pod-volume-backup", source, backup.Spec.Node)
	return a.move(ctx, write, pod, map[string]any{"finalizers": nil})
}

// upload runs a DataUpload with 15 writes: Accepted, five of the hand-over, claim, and those of a pod; it deletes the claim
// and the VolumeSnapshot, and removes the finalizer.
func (a *agent) upload(ctx context.Context, upload *velerov2alpha1.DataUpload) error {
	write := patch(ctx, a.velero.DataUploads(a.Namespace), upload.Name)
	if err := write(accepted(api.FinalizerData)); err != nil {
		return err
	}
	a.prepared <- struct{}{}
	defer func() { <-a.prepared }()
	size, err := a.handOver(ctx, upload)
	if err != nil {
		return err
	}
	claims := a.kube.CoreV1().PersistentVolumeClaims(a.Namespace)
	_, err = claims.Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: upload.Name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &upload.Spec.CSISnapshot.StorageClass,
			Resources:  corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
			DataSource: &corev1.TypedLocalObjectReference{APIGroup: new(snapshotv1.GroupName), Kind: "VolumeSnapshot", Name: upload.Name},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create claim: %w", err)
	}
	source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: upload.Name}}
	pod := a.pod(upload, velerov1.DataUploadLabel, "data-upload", source, a.Nodes...)
	if err := a.move(ctx, write, pod, nil); err != nil {
		return err
	}
	if err := claims.Delete(ctx, upload.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete claim: %w", err)
	}
	if err := a.snapshots.SnapshotV1().VolumeSnapshots(a.Namespace).Delete(ctx, upload.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete VolumeSnapshot: %w", err)
	}
	return write(map[string]any{"metadata": map[string]any{"finalizers": nil}})
}

// handOver moves a snapshot that is ready to Velero's namespace, and returns its size.
func (a *agent) handOver(ctx context.Context, upload *velerov2alpha1.DataUpload) (size resource.Quantity, err error) {
	source := upload.Spec.CSISnapshot.VolumeSnapshot
	all := a.snapshots.SnapshotV1()
	original, err := all.VolumeSnapshots(upload.Spec.SourceNamespace).Get(ctx, source, metav1.GetOptions{})
	if err != nil {
		return size, fmt.Errorf("get VolumeSnapshot: %w", err)
	}
	content, err := all.VolumeSnapshotContents().Get(ctx, *original.Status.BoundVolumeSnapshotContentName, metav1.GetOptions{})
	if err != nil {
		return size, fmt.Errorf("get VolumeSnapshotContent: %w", err)
	}
	snapshot, err := all.VolumeSnapshots(a.Namespace).Create(ctx, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: upload.Name},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &upload.Name}},
	}, metav1.CreateOptions{})
	if err != nil {
		return size, fmt.Errorf("create VolumeSnapshot: %w", err)
	}
	_, err = all.VolumeSnapshotContents().Create(ctx, &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: upload.Name},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: a.Namespace, Name: upload.Name, UID: snapshot.UID},
			DeletionPolicy:    snapshotv1.VolumeSnapshotContentDelete, Driver: content.Spec.Driver,
			Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: content.Status.SnapshotHandle},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return size, fmt.Errorf("create VolumeSnapshotContent: %w", err)
	}
	retain := patch(ctx, all.VolumeSnapshotContents(), content.Name)
	if err := retain(map[string]any{"spec": map[string]any{"deletionPolicy": snapshotv1.VolumeSnapshotContentRetain}}); err != nil {
		return size, err
	}
	if err := all.VolumeSnapshots(original.Namespace).Delete(ctx, original.Name, metav1.DeleteOptions{}); err != nil {
		return size, fmt.Errorf("delete source VolumeSnapshot: %w", err)
	}
	if err := all.VolumeSnapshotContents().Delete(ctx, content.Name, metav1.DeleteOptions{}); err != nil {
		return size, fmt.Errorf("delete source VolumeSnapshotContent: %w", err)
	}
	return *original.Status.RestoreSize, nil
}

// move runs a mover pod until it succeeds, and deletes it. The patch of the terminal phase has those metadata too.
func (a *agent) move(ctx context.Context, write patches, pod *corev1.Pod, metadata map[string]any) error {
	pods := a.kube.CoreV1().Pods(a.Namespace)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create mover: %w", err)
	}
	running, err := a.mover(pod.Name).until(ctx, corev1.PodRunning)
	if err != nil {
		return err
	}
	if err := write(map[string]any{"status": map[string]any{"phase": "Prepared"}}); err != nil {
		return err
	}
	slot := a.slots[running.Spec.NodeName]
	slot <- struct{}{}
	err = a.work(ctx, write, running, metadata)
	<-slot
	if err != nil {
		return err
	}
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete mover: %w", err)
	}
	return nil
}

// work holds a slot until the terminal phase is written.
func (a *agent) work(ctx context.Context, write patches, running *corev1.Pod, metadata map[string]any) error {
	started := map[string]any{"phase": "InProgress", "node": running.Spec.NodeName, "startTimestamp": now()}
	if err := write(map[string]any{"status": started}); err != nil {
		return err
	}
	ended, err := a.mover(running.Name).until(ctx, corev1.PodSucceeded)
	if err != nil {
		return err
	}
	var result struct {
		SnapshotID string `json:"snapshotID"`
	}
	if err := json.Unmarshal([]byte(ended.Status.ContainerStatuses[0].State.Terminated.Message), &result); err != nil {
		return fmt.Errorf("read result of mover %s: %w", ended.Name, err)
	}
	completed := map[string]any{"status": map[string]any{"phase": "Completed", "snapshotID": result.SnapshotID, "completionTimestamp": now()}}
	if metadata != nil {
		completed["metadata"] = metadata
	}
	return write(completed)
}

// accepted is the first patch of a transfer.
func accepted(finalizer string) map[string]any {
	return map[string]any{"metadata": map[string]any{"finalizers": []string{finalizer}}, "status": map[string]any{"phase": "Accepted", "acceptedTimestamp": now()}}
}

// pod returns the mover of a transfer with one volume, for one of the nodes.
func (a *agent) pod(transfer metav1.Object, label, flag string, volume corev1.VolumeSource, nodes ...string) *corev1.Pod {
	var terms []corev1.NodeSelectorTerm
	for _, node := range nodes {
		name := corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}
		terms = append(terms, corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{name}})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: transfer.GetName(), Labels: map[string]string{labelMover: "true", label: transfer.GetName()}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64),
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
			}},
			Containers: []corev1.Container{{
				Name: "mover", Image: a.Image, Args: []string{"--" + flag + "=" + transfer.GetName()},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: volume}},
		},
	}
}
