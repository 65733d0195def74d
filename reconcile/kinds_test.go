package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/reconcile/transfer"
)

// newBackup returns a PodVolumeBackup of a volume of pod app/db, which no cache has.
func newBackup() *single[*velerov1.PodVolumeBackup] {
	return newSingle(transfer.PodVolumeBackup(), &velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{
		Node: testNode, Volume: "data", UploaderType: "kopia", Pod: corev1.ObjectReference{Namespace: "app", Name: "db", UID: "pod-uid"},
	}})
}

// steps reconciles that often.
func (s *single[T]) steps(t *testing.T, count int) {
	t.Helper()
	for range count {
		s.step(t)
	}
}

// stepFails reconciles once, with an error.
func (s *single[T]) stepFails(t *testing.T, message string) {
	t.Helper()
	_, err := s.Reconcile(t.Context(), testKey)
	require.ErrorContains(t, err, message)
}

// newRunning returns a PodVolumeBackup in progress, whose mover and pod no cache has.
func newRunning() *single[*velerov1.PodVolumeBackup] {
	s := newBackup()
	started := &metav1.Time{Time: s.clock.Now()}
	s.object.Status = velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseInProgress, AcceptedTimestamp: started, StartTimestamp: started}
	return s
}

// newWorking returns a PodVolumeBackup with a running mover.
func newWorking() *single[*velerov1.PodVolumeBackup] {
	s := newRunning()
	s.pods["app/db"], s.pods[testKey] = sourcePod(), moverPod()
	return s
}

// newRestore returns a PodVolumeRestore to a volume of pod app/db, which no cache has.
func newRestore() *single[*velerov1.PodVolumeRestore] {
	return newSingle(transfer.PodVolumeRestore(), &velerov1.PodVolumeRestore{Spec: velerov1.PodVolumeRestoreSpec{
		Volume: "data", UploaderType: "kopia", Pod: corev1.ObjectReference{Namespace: "app", Name: "db", UID: "pod-uid"},
	}})
}

// newDownload returns a DataDownload to the claim app/data of that class, which is cached.
func newDownload(class string) *single[*velerov2alpha1.DataDownload] {
	s := newSingle(transfer.DataDownload(), &velerov2alpha1.DataDownload{Spec: velerov2alpha1.DataDownloadSpec{
		TargetVolume: velerov2alpha1.TargetVolumeSpec{Namespace: "app", PVC: "data"},
	}})
	s.target.known = true
	s.target.claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class}}
	return s
}

// newUpload returns a DataUpload of a snapshot in that phase.
func newUpload(phase velerov2alpha1.DataUploadPhase) *single[*velerov2alpha1.DataUpload] {
	spec := velerov2alpha1.DataUploadSpec{SnapshotType: "CSI", CSISnapshot: &velerov2alpha1.CSISnapshotSpec{VolumeSnapshot: "snap"}}
	return newSingle(transfer.DataUpload(), &velerov2alpha1.DataUpload{Spec: spec, Status: velerov2alpha1.DataUploadStatus{Phase: phase}})
}

// sourcePod is app/db on this node.
func sourcePod() *corev1.Pod {
	data := corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "db", UID: "pod-uid"}, Spec: corev1.PodSpec{NodeName: testNode, Volumes: []corev1.Volume{data}},
	}
}

// waitingPod is app/db on this node, with its init container in that state.
func waitingPod(wait corev1.ContainerState) *corev1.Pod {
	pod := sourcePod()
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "restore-wait", State: wait}}}
	return pod
}

// targetOn is app/db, which has that node, if it has one.
func targetOn(node string) *corev1.Pod {
	pod := waitingPod(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}})
	pod.Spec.NodeName = node
	return pod
}

// initializing is app/db on n2, which waits for its volume.
func initializing() *corev1.Pod {
	pod := waitingPod(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	pod.Spec.NodeName = "n2"
	return pod
}

// moverPod is the running mover on this node.
func moverPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "mover-uid", OwnerReferences: []metav1.OwnerReference{{UID: "b1-uid", Controller: new(true)}}},
		Spec:       corev1.PodSpec{NodeName: testNode}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// ended is the status of a mover's container that has ended.
func ended(code int32, message string) []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{Name: "b1-uid", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message}}}}
}
