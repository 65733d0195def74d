package informers

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

func claimOf(version string, annotations map[string]string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data", ResourceVersion: version, Annotations: annotations},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: new("fast")},
	}
}

func TestEachClaimHasItsOwnWatch(t *testing.T) {
	api := newServer(t)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	targets := NewTargets(ctx, client)
	enqueued := make(chan struct{}, 10)
	follow := func(uid types.UID, name string) {
		targets.Watch(uid, types.NamespacedName{Namespace: "app", Name: name}, func() { enqueued <- struct{}{} })
	}
	_, known := targets.Claim("uid")
	require.False(t, known, "it is not watched")
	api.lock.Lock() // it does not answer
	follow("uid", "data")
	follow("uid", "data")
	_, known = targets.Claim("uid")
	require.False(t, known, "nothing is read yet")
	api.lock.Unlock()
	<-enqueued // the claim exists
	<-enqueued // the first list is complete
	found, known := targets.Claim("uid")
	require.True(t, known)
	require.Equal(t, "data", found.Name)

	bound := map[string]string{"volume.kubernetes.io/selected-node": "n1"}
	api.changes <- claimOf("2", bound)
	<-enqueued
	targets.ClassChanged("slow")
	require.Empty(t, enqueued, "it has another class")
	targets.ClassChanged("fast")
	<-enqueued
	found, _ = targets.Claim("uid")
	require.Equal(t, bound, found.Annotations)

	follow("other", "missing")
	<-enqueued
	found, known = targets.Claim("other")
	require.True(t, known, "its absence is known too")
	require.Nil(t, found)
	targets.Forget("other")
	<-api.closed
	_, known = targets.Claim("other")
	require.False(t, known)

	attachments := NewAttachments(ctx, client)
	is := func() []bool { detached, watched := attachments.Detached("uid"); return []bool{detached, watched} }
	require.Equal(t, []bool{false, false}, is())
	attachments.Watch("uid", types.NamespacedName{Name: "csi-1"}, func() { enqueued <- struct{}{} })
	<-enqueued
	require.Equal(t, []bool{true, true}, is())
	attachments.Forget("uid")
	require.Equal(t, []bool{false, false}, is())
	stop()
	targets.Wait()
	require.True(t, targets.followed["uid"].objects.shared.IsStopped(), "Wait returned too early")
	attachments.Wait()
	attachments.Watch("uid", types.NamespacedName{Name: "csi-1"}, nil)
	require.Equal(t, []bool{false, false}, is(), "the context has ended")
	require.Len(t, api.requests, 3, "one watch each")
}

func backup(phase velerov1.PodVolumeBackupPhase, finalizers ...string) *velerov1.PodVolumeBackup {
	stamp := metav1.NewTime(time.Unix(1_800_000_000, 0))
	return &velerov1.PodVolumeBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: "b1", UID: "uid", ResourceVersion: "7", CreationTimestamp: stamp, DeletionTimestamp: &stamp,
			Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"a": "b"}, Finalizers: finalizers,
			OwnerReferences: []metav1.OwnerReference{{Kind: "Backup", Name: "b"}},
		},
		Spec:   velerov1.PodVolumeBackupSpec{Node: "n1", Volume: "data", Tags: map[string]string{"a": "b"}},
		Status: velerov1.PodVolumeBackupStatus{Phase: phase, SnapshotID: "snap", Message: "words"},
	}
}

func TestUnfinishedBackupsAreNotTrimmed(t *testing.T) {
	marked := backup(velerov1.PodVolumeBackupPhaseCompleted)
	marked.Annotations[api.AnnotationExposer] = "n1"
	for name, kept := range map[string]*velerov1.PodVolumeBackup{
		"one that is new":                                       backup(""),
		"one that is accepted":                                  backup(velerov1.PodVolumeBackupPhaseAccepted),
		"one that is moving":                                    backup(velerov1.PodVolumeBackupPhaseInProgress, api.FinalizerPodVolume),
		"one that is being canceled":                            backup(velerov1.PodVolumeBackupPhaseCanceling, api.FinalizerPodVolume),
		"a terminal one that is not cleaned up":                 backup(velerov1.PodVolumeBackupPhaseFailed, "a/b", api.FinalizerPodVolume),
		"a terminal one whose finalizer Velero's agent removed": marked,
	} {
		trimmed := kept.DeepCopy()
		trimBackup(trimmed)
		require.Equal(t, kept, trimmed, name)
	}
}

func TestTerminalBackupsAreTrimmedToTheCountedFields(t *testing.T) {
	for _, phase := range []velerov1.PodVolumeBackupPhase{
		velerov1.PodVolumeBackupPhaseCompleted, velerov1.PodVolumeBackupPhaseFailed, velerov1.PodVolumeBackupPhaseCanceled,
	} {
		trimmed, counted := backup(phase, "somebody/else"), backup(phase)
		trimBackup(trimmed)
		counted.Labels, counted.Annotations, counted.OwnerReferences = nil, nil, nil
		counted.Spec, counted.Status = velerov1.PodVolumeBackupSpec{Node: "n1"}, velerov1.PodVolumeBackupStatus{Phase: phase}
		require.Equal(t, counted, trimmed)
	}
}

// TestTrimmedPodsAreReadAsUntrimmedOnes takes pods of a mover and of a workload. It reads everything that the agent reads
// of them, before and after the trim.
func TestTrimmedPodsAreReadAsUntrimmedOnes(t *testing.T) {
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}
	whole := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: "b1", UID: "uid", ResourceVersion: "7", DeletionTimestamp: &metav1.Time{},
			Labels: map[string]string{api.LabelExposer: "n1"}, Annotations: map[string]string{api.AnnotationAttempt: "2"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "PodVolumeBackup", Name: "b1", UID: "owner", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{
			NodeName: "n1", PriorityClassName: "velero-low", Priority: ptr.To[int32](10),
			Volumes:     []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			Tolerations: []corev1.Toleration{{Key: "spot"}},
			Containers:  []corev1.Container{{Name: "main", Env: []corev1.EnvVar{{Name: "A", Value: "large"}}}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory", PodIP: "10.0.0.1",
			Conditions:        []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "TerminationByKubelet"}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "owner", State: ended}},
		},
	}
	trimmed := whole.DeepCopy()
	trimPod(trimmed)
	require.Empty(t, trimmed.Spec.Containers, "the bulk of a pod is dropped")
	require.Empty(t, trimmed.Status.PodIP)
	require.Equal(t, whole.ObjectMeta, trimmed.ObjectMeta)
	require.Equal(t, objects.ReadPod(whole), objects.ReadPod(trimmed))
	require.Equal(t, whole.Spec.Tolerations, trimmed.Spec.Tolerations)
	require.True(t, objects.OwnedBy(trimmed, "owner"))
	require.Equal(t, whole.Spec.Volumes, trimmed.Spec.Volumes)

	whole.DeletionTimestamp, whole.Status.Conditions, whole.Status.Reason = nil, nil, ""
	trimmed = whole.DeepCopy()
	trimPod(trimmed)
	require.Equal(t, objects.Failed, objects.ReadPod(trimmed).Condition)
	require.Equal(t, objects.ReadPod(whole), objects.ReadPod(trimmed))
}

func TestATrimmedMoverKeepsItsMemoryLimit(t *testing.T) {
	whole := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{api.LabelMover: "true"}, OwnerReferences: []metav1.OwnerReference{{UID: "uid", Controller: new(true)}}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "uid", Image: "velero", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi"), corev1.ResourceCPU: resource.MustParse("1")},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "uid", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}},
		}},
	}
	trimmed := whole.DeepCopy()
	trimPod(trimmed)
	require.Empty(t, trimmed.Spec.Containers[0].Image)
	require.Len(t, trimmed.Spec.Containers[0].Resources.Limits, 1)
	require.Contains(t, objects.ReadPod(trimmed).Message, "its memory limit is 512Mi")
	require.Equal(t, objects.ReadPod(whole), objects.ReadPod(trimmed))
}
