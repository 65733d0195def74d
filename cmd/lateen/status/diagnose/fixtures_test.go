package diagnose_test

import (
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/handover"
	"github.com/lateen-project/lateen/exposer/objects"
)

// starting returns movers that do not run yet, one for each cause.
func starting() *fixture {
	s := cluster(1, `{}`)
	accepted := inPhase(velerov1.PodVolumeBackupPhaseAccepted, time.Minute)
	s.backup("no-pod-yet", "node-1", 9*time.Minute, accepted)
	s.event("PodVolumeBackup", s.backup("no-quota", "node-1", 9*time.Minute, accepted), corev1.EventTypeWarning, "MoverCreateFailed",
		`create pod velero/no-quota: pods "no-quota" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0`, 30*time.Second)
	s.mover(s.backup("no-node-yet", "node-1", 8*time.Minute, accepted), "")
	creating := s.mover(s.backup("no-mount", "node-1", 7*time.Minute, accepted), "node-1", stuck("ContainerCreating", ""))
	s.event("Pod", creating, corev1.EventTypeWarning, "FailedMount", `MountVolume.SetUp failed for volume "cloud-credentials": secret "cloud-credentials" not found`, time.Minute)
	s.mover(s.backup("creating", "node-1", 6*time.Minute, accepted), "node-1", stuck("ContainerCreating", ""))
	s.mover(s.backup("runs", "node-1", 5*time.Minute, accepted), "node-1")
	claimed := s.upload("no-volume", "data", 4*time.Minute, true)
	s.mover(claimed, "")
	s.event("PersistentVolumeClaim", s.claim(claimed), corev1.EventTypeWarning, "ProvisioningFailed", "the array is full", time.Minute)
	restarted := s.backup("evicted", "node-1", 3*time.Minute, accepted)
	restarted.Annotations = map[string]string{api.AnnotationRestarts: "2"}
	restarted.Status.Message = "mover was evicted: The node was low on resource: memory."
	pausing := s.backup("pausing", "node-1", 3*time.Minute, inPhase(velerov1.PodVolumeBackupPhaseAccepted, time.Second))
	pausing.Annotations, pausing.Status.Message = map[string]string{api.AnnotationRestarts: "1"}, "mover was preempted"
	stale := s.backup("stale", "node-1", 3*time.Minute, accepted)
	stale.Annotations = map[string]string{api.AnnotationRestarts: "1"}
	s.mover(stale, "node-1")
	s.backup("deleting", "node-1", 3*time.Minute, inProgress(time.Minute, 1, 2), func(b *velerov1.PodVolumeBackup) { b.DeletionTimestamp = past(time.Second) })
	ended := s.mover(s.backup("failed", "node-1", 3*time.Minute, inProgress(time.Minute, 1, 2)), "node-1")
	ended.Status.Phase = corev1.PodFailed
	ended.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: ended.Name, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "cannot reach the repository"},
	}}}
	s.backup("of-a-newer-version", "node-1", 3*time.Minute, inPhase("Quiescing", time.Minute))
	s.mover(s.backup("a-name-that-is-much-longer-than-what-a-table-has-room-for", "node-1", 2*time.Minute, inProgress(time.Minute, 1, 2)), "node-1")
	deleted := s.upload("no-snapshot", "gone", time.Minute, true)
	deleted.Spec.CSISnapshot.VolumeSnapshot = "never-taken"
	return s
}

// restores returns restores that wait for the pod or the claim they restore to.
func restores() *fixture {
	s := cluster(1, `{}`)
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: meta("app", name, time.Minute), Spec: corev1.PodSpec{NodeName: node}}
	}
	s.restore("to-a-pod-that-is-gone", nil)
	s.restore("to-a-pod-without-a-node", pod("pending", ""))
	s.restore("to-a-pod-that-starts", pod("starting", "node-1"))
	s.restore("to-a-pod-elsewhere", pod("elsewhere", "node-9"))
	s.restore("to-a-pod-that-waits", waiting("waiting", "node-1"))
	class := &storagev1.StorageClass{ObjectMeta: meta("", "late", time.Hour), VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta("app", "unused", time.Hour), Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class.Name}}
	lost := &corev1.PersistentVolumeClaim{ObjectMeta: meta("app", "classless", time.Hour), Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("gone")}}
	s.add(class, claim, lost)
	s.download("to-no-claim", "never-made")
	s.download("to-a-claim-without-a-class", "classless")
	s.download("in-place", "unused", func(d *velerov2alpha1.DataDownload) { d.Spec.TargetVolume.PV = "pv-1" })
	s.download("to-a-claim-without-a-pod", "unused")
	return s
}

// unattended returns agents that do not work, and no coordinator.
func unattended() *fixture {
	s := &fixture{}
	s.agent("node-1", true)
	s.agent("node-2", false)
	s.lease("node-2_gone", 10*time.Minute)
	s.add(&corev1.Pod{})
	s.backup("of-a-node-without-a-ready-agent", "node-2", time.Minute)
	s.backup("of-a-node-without-an-agent", "node-3", time.Minute, inProgress(time.Minute, 0, 0))
	s.download("of-no-node", "data")
	return s
}

// ending returns transfers that are about to end, in the order of their remaining steps.
func ending() *fixture {
	s := cluster(1, `{}`)
	s.mover(s.backup("to-cancel", "node-1", 6*time.Minute, inProgress(time.Minute, mib, 2*mib), func(b *velerov1.PodVolumeBackup) {
		b.Spec.Cancel, b.Status.Phase = true, velerov1.PodVolumeBackupPhaseCanceling
	}), "node-1")
	s.backup("lost", "node-1", 5*time.Minute, inProgress(time.Minute, mib, 2*mib))
	s.backup("to-clean-up", "node-1", 4*time.Minute, inPhase(velerov1.PodVolumeBackupPhaseCompleted, time.Minute), func(b *velerov1.PodVolumeBackup) {
		b.Finalizers = []string{api.FinalizerPodVolume}
	})
	s.mover(s.backup("terminating", "node-1", 4*time.Minute, inPhase(velerov1.PodVolumeBackupPhaseFailed, time.Minute), func(b *velerov1.PodVolumeBackup) {
		b.Finalizers = []string{api.FinalizerPodVolume}
	}), "node-1", func(pod *corev1.Pod) { pod.DeletionTimestamp = past(time.Minute) })
	s.upload("empty", "none", 2*time.Minute, true).Status = velerov2alpha1.DataUploadStatus{
		Phase: velerov2alpha1.DataUploadPhaseCompleted, CompletionTimestamp: past(time.Second), Message: "volume was empty so no data was upload",
	}
	s.download("to-deliver", "data", func(d *velerov2alpha1.DataDownload) {
		d.Annotations = map[string]string{api.AnnotationMoved: now.Add(-time.Minute).Format(time.RFC3339)}
		d.Status.Phase, d.Status.Node, d.Status.StartTimestamp = velerov2alpha1.DataDownloadPhaseInProgress, "node-1", past(2*time.Minute)
	})
	upload := s.upload("whose-snapshot-is-held", "pgdata", 3*time.Minute, true)
	*s = (*s)[:len(*s)-2] // without the original pair: the snapshot was handed over
	upload.Finalizers = []string{api.FinalizerData}
	upload.Status.Phase, upload.Status.CompletionTimestamp = velerov2alpha1.DataUploadPhaseCanceled, past(30*time.Second)
	s.add(&snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: upload.Name, Labels: objects.OwnerLabels(upload.UID, "node-1"), Annotations: handover.MarkedBeingDeleted(),
			CreationTimestamp: ago(2 * time.Minute), DeletionTimestamp: past(30 * time.Second),
		},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: "ebs.csi.aws.com", DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "velero", Name: upload.Name},
		},
	})
	s.download("of-another-data-mover", "data", func(d *velerov2alpha1.DataDownload) { d.Spec.DataMover = "acme-datamover" })
	s.download("taken-by-another-data-mover", "data", func(d *velerov2alpha1.DataDownload) {
		d.Spec.DataMover = "acme-datamover"
		d.Status.Phase, d.Status.StartTimestamp = velerov2alpha1.DataDownloadPhaseInProgress, past(time.Minute)
	})
	s.download("over-by-another-data-mover", "data", func(d *velerov2alpha1.DataDownload) {
		d.Spec.DataMover, d.Status.Phase = "acme-datamover", velerov2alpha1.DataDownloadPhaseCompleted
	})
	return s
}

// idle returns one finished transfer of each result.
func idle() *fixture {
	s := cluster(2, `{}`)
	for _, phase := range []velerov1.PodVolumeBackupPhase{velerov1.PodVolumeBackupPhaseCompleted, velerov1.PodVolumeBackupPhaseFailed, velerov1.PodVolumeBackupPhaseCanceled} {
		s.backup(string(phase), "node-1", time.Hour).Status.Phase = phase
	}
	return s
}

// missingClass configures a class that does not exist in the cluster, and a class that cannot be read.
func missingClass() *fixture {
	s := cluster(1, `{"priorityClassName": "backup-high", "loadConcurrency": {"globalConfig": 2}}`)
	s.add(&corev1.ConfigMap{ObjectMeta: meta("velero", "jobs", time.Hour), Data: map[string]string{"global": `{"priorityClassName": `}})
	s.mover(s.backup("nightly", "node-1", time.Minute, inProgress(time.Minute, 512, 1024)), "node-1", func(pod *corev1.Pod) { pod.Spec.PriorityClassName, pod.Spec.Priority = "", new(int32(0)) })
	s.agent("node-2", true).Annotations = map[string]string{api.AnnotationClassFallback: "not_found", api.AnnotationConfigNotApplied: "Rejected the edit of ConfigMap node-agent-config"}
	never := s.repository("new-default-kopia", 0)
	never.Status.Phase = velerov1.BackupRepositoryPhaseNotReady
	s.repository("app-default-kopia", time.Hour)
	s.job("app-default-kopia", "app-default-kopia-maintain-job-1")
	return s
}

// unmaintained has repositories that are maintained beside a released server, which keeps three entries of their history. The
// last job of one has no verdict yet.
func unmaintained() *fixture {
	s := cluster(1, `{}`)
	for name, verdict := range map[string]objects.Verdict{"app-default-kopia": objects.VerdictFailed, "shop-default-kopia": ""} {
		s.repository(name, 0, "no bucket", "no bucket", "no bucket")
		job := s.job(name, name+"-maintain-job-6")
		job.Annotations = map[string]string{api.AnnotationFailures: "5", api.AnnotationFactor: "1", api.AnnotationKeep: "3", api.AnnotationVerdict: string(verdict)}
		job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, LastTransitionTime: ago(time.Second)}}
	}
	return s
}

// paced returns as many movers as a node without a prepare queue may have, and one more transfer.
func paced() *fixture {
	s := cluster(1, `{"loadConcurrency": {"globalConfig": 1}}`)
	s.mover(s.backup("prepared", "node-1", 5*time.Minute, inPhase(velerov1.PodVolumeBackupPhasePrepared, time.Minute)), "node-1")
	s.backup("new", "node-1", time.Minute)
	s.restore("new-restore", waiting("waiting", "node-1"))
	return s
}

// waiting returns a pod whose init container waits for its volumes.
func waiting(name, node string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta("app", name, time.Minute), Spec: corev1.PodSpec{NodeName: node}}
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "restore-wait", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	return pod
}

// small returns a full node that has fewer slots than others, and restores to volumes of one pod, of which one was restarted.
func small() *fixture {
	s := cluster(2, `{"loadConcurrency": {"globalConfig": 4, "perNodeConfig": [{"nodeSelector": {"matchLabels": {"size": "small"}}, "number": 1}], "prepareQueueLength": 20}}`)
	for _, object := range *s {
		if node, ok := object.(*corev1.Node); ok && node.Name == "node-1" {
			node.Labels = map[string]string{"size": "small"}
		}
	}
	s.backup("accepted", "node-1", 5*time.Minute, inPhase(velerov1.PodVolumeBackupPhaseAccepted, time.Minute))
	s.backup("new", "node-1", time.Minute)
	pod := waiting("restored", "node-2")
	restarted, next := s.restore("restarted", pod), s.restore("next", nil)
	restarted.Annotations, next.Spec.Pod = map[string]string{api.AnnotationRestarts: "1"}, restarted.Spec.Pod
	restarted.Status = velerov1.PodVolumeRestoreStatus{Phase: velerov1.PodVolumeRestorePhaseInProgress, Node: "node-2", AcceptedTimestamp: past(time.Minute), StartTimestamp: past(time.Minute)}
	next.Status = velerov1.PodVolumeRestoreStatus{Phase: velerov1.PodVolumeRestorePhasePrepared, Node: "node-2", AcceptedTimestamp: past(time.Minute)}
	s.mover(restarted, "node-2")
	s.mover(next, "node-2")
	return s
}

// replaced returns agents that are not ready while a coordinator is: one that is replaced, and one that no node has room for.
func replaced() *fixture {
	s := cluster(1, `{}`)
	s.agent("node-2", false)
	unscheduled := s.agent("node-3", false)
	unscheduled.Spec.NodeName = ""
	unscheduled.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-3"}}}}},
	}}}
	s.event("Pod", unscheduled, corev1.EventTypeWarning, "FailedScheduling", "0/3 nodes are available: 1 Insufficient cpu", time.Minute)
	s.mover(s.backup("moving", "node-2", 5*time.Minute, inProgress(time.Minute, mib, 2*mib)), "node-2")
	s.mover(s.backup("prepared", "node-2", 5*time.Minute, inPhase(velerov1.PodVolumeBackupPhasePrepared, time.Minute)), "node-2")
	s.backup("accepted", "node-2", 5*time.Minute, inPhase(velerov1.PodVolumeBackupPhaseAccepted, time.Minute))
	s.backup("new", "node-3", time.Minute)
	return s
}

// queued returns an admission queue that reserves places for restores.
func queued() *fixture {
	s := cluster(1, `{"loadConcurrency": {"globalConfig": 8, "prepareQueueLength": 4}}`)
	for _, name := range []string{"first", "second", "third"} {
		s.backup(name, "node-1", 10*time.Minute, inPhase(velerov1.PodVolumeBackupPhaseAccepted, time.Minute))
	}
	s.backup("fourth", "node-1", 5*time.Minute)
	s.restore("fifth", waiting("waiting", "node-1"))
	return s
}

// limited returns a full storage class, and a transfer of it and of another one that are new.
func limited(more string) *fixture {
	s := cluster(1, `{"loadConcurrency": {"globalConfig": 8, "storageClasses": {"nfs": 1}`+more+`}}`)
	s.upload("accepted", "files", 5*time.Minute, false).Spec.CSISnapshot.StorageClass = "nfs"
	for name, class := range map[string]string{"same-class": "nfs", "other-class": "fast"} {
		upload := s.upload(name, name, time.Minute, true)
		upload.Spec.CSISnapshot.StorageClass, upload.Status = class, velerov2alpha1.DataUploadStatus{}
	}
	s.add(&corev1.PersistentVolumeClaim{ObjectMeta: meta("app", "restored", time.Minute), Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("nfs")}})
	s.add(&storagev1.StorageClass{ObjectMeta: meta("", "nfs", time.Hour)})
	s.download("restore", "restored")
	return s
}

// restored returns a restore that fills a storage class, whose target claim was not read, and a new one of that class.
func restored() *fixture {
	s := cluster(1, `{"loadConcurrency": {"globalConfig": 8, "storageClasses": {"nfs": 1}}}`)
	of := corev1.PersistentVolumeClaimSpec{StorageClassName: new("nfs")}
	s.add(&storagev1.StorageClass{ObjectMeta: meta("", "nfs", time.Hour)}, &corev1.PersistentVolumeClaim{ObjectMeta: meta("velero", "first", time.Minute), Spec: of},
		&corev1.PersistentVolumeClaim{ObjectMeta: meta("app", "target", time.Minute), Spec: of})
	s.download("first", "elsewhere", func(d *velerov2alpha1.DataDownload) {
		d.Annotations = map[string]string{api.AnnotationExposer: "node-1"}
		d.Status.Phase, d.Status.Node, d.Status.StartTimestamp = velerov2alpha1.DataDownloadPhaseInProgress, "node-1", past(2*time.Minute)
	})
	s.download("second", "target")
	return s
}

// now is the observation time of every fixture.
var now = time.Date(2026, time.November, 21, 14, 30, 0, 0, time.UTC)

// fixture is the objects of a cluster.
type fixture []runtime.Object

func (f *fixture) add(objects ...runtime.Object) { *f = append(*f, objects...) }

// ago returns a time before now.
func ago(d time.Duration) metav1.Time   { return metav1.NewTime(now.Add(-d)) }
func past(d time.Duration) *metav1.Time { return new(ago(d)) }

func meta(namespace, name string, age time.Duration) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name), CreationTimestamp: ago(age)}
}

// cluster returns agents on this number of nodes with this node-agent ConfigMap. The first agent coordinates.
func cluster(nodes int, config string) *fixture {
	s := &fixture{}
	for i := range nodes {
		s.agent(fmt.Sprintf("node-%d", i+1), true)
	}
	s.lease("node-1_x7k2p9qd", 3*time.Second)
	s.add(
		&appsv1.DaemonSet{ObjectMeta: meta("velero", "node-agent", time.Hour), Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Args: []string{"node-agent", "--node-agent-configmap=node-agent-config", "--repo-maintenance-job-configmap=jobs"}}},
		}}}},
		&corev1.ConfigMap{ObjectMeta: meta("velero", "node-agent-config", time.Hour), Data: map[string]string{"config.json": config}},
		&corev1.ConfigMap{ObjectMeta: meta("velero", "jobs", time.Hour), Data: map[string]string{"global": `{"priorityClassName": "backup-low"}`}},
		&schedulingv1.PriorityClass{ObjectMeta: meta("", "backup-low", time.Hour), Value: 10, PreemptionPolicy: new(corev1.PreemptNever)},
	)
	return s
}

func (f *fixture) agent(node string, ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod := &corev1.Pod{ObjectMeta: meta("velero", "node-agent-"+node, time.Hour), Spec: corev1.PodSpec{NodeName: node}}
	pod.Labels = map[string]string{"role": "node-agent"}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	f.add(pod, &corev1.Node{ObjectMeta: meta("", node, time.Hour)})
	return pod
}

func (f *fixture) lease(holder string, age time.Duration) {
	f.add(&coordinationv1.Lease{ObjectMeta: meta("velero", "lateen-coordinator", time.Hour), Spec: coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: new(int32(30)), RenewTime: new(metav1.NewMicroTime(now.Add(-age))),
	}})
}

// backup adds a PodVolumeBackup of this age on a node.
func (f *fixture) backup(name, node string, age time.Duration, change ...func(*velerov1.PodVolumeBackup)) *velerov1.PodVolumeBackup {
	created := &velerov1.PodVolumeBackup{ObjectMeta: meta("velero", name, age), Spec: velerov1.PodVolumeBackupSpec{
		Node: node, UploaderType: "kopia", Volume: "data", Pod: corev1.ObjectReference{Namespace: "app", Name: "postgres-0"},
	}}
	for _, one := range change {
		one(created)
	}
	f.add(created)
	return created
}

// inProgress returns a backup in progress since that long, with these bytes done.
func inProgress(since time.Duration, done, total int64) func(*velerov1.PodVolumeBackup) {
	return func(b *velerov1.PodVolumeBackup) {
		b.Finalizers = []string{api.FinalizerPodVolume}
		b.Status.Phase, b.Status.AcceptedTimestamp, b.Status.StartTimestamp = velerov1.PodVolumeBackupPhaseInProgress, past(since+2*time.Second), past(since)
		b.Status.Progress.BytesDone, b.Status.Progress.TotalBytes = done, total
	}
}

// inPhase returns a backup in a phase without data movement. It was accepted that long ago.
func inPhase(phase velerov1.PodVolumeBackupPhase, accepted time.Duration) func(*velerov1.PodVolumeBackup) {
	return func(b *velerov1.PodVolumeBackup) {
		b.Status.Phase, b.Status.AcceptedTimestamp = phase, past(accepted)
		b.Finalizers = []string{api.FinalizerPodVolume}
		if phase == velerov1.PodVolumeBackupPhaseCompleted || phase == velerov1.PodVolumeBackupPhaseFailed {
			b.Finalizers, b.Status.CompletionTimestamp = nil, past(accepted-time.Second)
		}
	}
}

// upload adds a DataUpload of a claim, accepted a minute ago, with its snapshot.
func (f *fixture) upload(name, claim string, age time.Duration, ready bool) *velerov2alpha1.DataUpload {
	created := &velerov2alpha1.DataUpload{
		ObjectMeta: meta("velero", name, age),
		Spec: velerov2alpha1.DataUploadSpec{
			SnapshotType: velerov2alpha1.SnapshotTypeCSI, SourceNamespace: "shop", SourcePVC: claim,
			CSISnapshot: &velerov2alpha1.CSISnapshotSpec{VolumeSnapshot: "snapshot-of-" + claim},
		},
		Status: velerov2alpha1.DataUploadStatus{Phase: velerov2alpha1.DataUploadPhaseAccepted, AcceptedTimestamp: past(time.Minute), AcceptedByNode: "node-1"},
	}
	content := "content-of-" + claim
	snapshot := &snapshotv1.VolumeSnapshot{ObjectMeta: meta("shop", "snapshot-of-"+claim, age), Status: &snapshotv1.VolumeSnapshotStatus{
		ReadyToUse: &ready, BoundVolumeSnapshotContentName: &content,
	}}
	if !ready {
		snapshot.Status.Error = &snapshotv1.VolumeSnapshotError{Message: new("rpc error: code = ResourceExhausted desc = the array has no room for another snapshot")}
	}
	f.add(created, snapshot)
	if ready {
		f.add(&snapshotv1.VolumeSnapshotContent{ObjectMeta: meta("", content, age), Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "shop", Name: snapshot.Name},
		}, Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("handle-of-" + claim)}})
	}
	return created
}

// mover adds the pod of a transfer. It runs on the node, or has none.
func (f *fixture) mover(of metav1.Object, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta(of.GetNamespace(), of.GetName(), time.Minute), Spec: corev1.PodSpec{NodeName: node, PriorityClassName: "backup-low", Priority: new(int32(10))}}
	pod.UID = "uid-of-the-mover-of-" + of.GetUID()
	pod.OwnerReferences = []metav1.OwnerReference{{Name: of.GetName(), UID: of.GetUID(), Controller: new(true)}}
	pod.Status.Phase = corev1.PodPending
	if node != "" {
		pod.Status.Phase = corev1.PodRunning
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ago(50 * time.Second)}}}}
	}
	for _, one := range change {
		one(pod)
	}
	f.add(pod)
	return pod
}

// unschedulable changes a pod so that the scheduler finds no node for it.
func unschedulable(message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message}}
	}
}

// stuck changes a pod so that its container waits for a reason.
func stuck(reason, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodPending
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	}
}

// claim adds a claim of a transfer without a volume.
func (f *fixture) claim(of metav1.Object) *corev1.PersistentVolumeClaim {
	created := &corev1.PersistentVolumeClaim{ObjectMeta: meta(of.GetNamespace(), of.GetName(), time.Minute)}
	created.UID = "uid-of-the-claim-of-" + of.GetUID()
	created.OwnerReferences = []metav1.OwnerReference{{UID: of.GetUID(), Controller: new(true)}}
	created.Status.Phase = corev1.ClaimPending
	f.add(created)
	return created
}

// event adds an Event about an object.
func (f *fixture) event(kind string, about metav1.Object, class, reason, message string, age time.Duration) {
	f.add(&corev1.Event{
		ObjectMeta:     meta(about.GetNamespace(), fmt.Sprintf("event-%d", len(*f)), age),
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: about.GetNamespace(), Name: about.GetName(), UID: about.GetUID()},
		Type:           class, Reason: reason, Message: message, LastTimestamp: ago(age), FirstTimestamp: ago(age), Count: 1,
	})
}

// repository adds a repository whose last maintenance succeeded that long ago, or never if that is 0.
func (f *fixture) repository(name string, success time.Duration, failures ...string) *velerov1.BackupRepository {
	created := &velerov1.BackupRepository{ObjectMeta: meta("velero", name, 48*time.Hour), Status: velerov1.BackupRepositoryStatus{Phase: velerov1.BackupRepositoryPhaseReady}}
	created.Spec.RepositoryType, created.Spec.VolumeNamespace, created.Spec.BackupStorageLocation = velerov1.BackupRepositoryTypeKopia, "app", "default"
	if success > 0 {
		created.Status.LastMaintenanceTime = past(success)
		created.Status.RecentMaintenance = append(created.Status.RecentMaintenance, velerov1.BackupRepositoryMaintenanceStatus{
			Result: velerov1.BackupRepositoryMaintenanceSucceeded, StartTimestamp: past(success + time.Minute), CompleteTimestamp: past(success),
		})
	}
	for i, message := range failures {
		created.Status.RecentMaintenance = append(created.Status.RecentMaintenance, velerov1.BackupRepositoryMaintenanceStatus{
			Result: velerov1.BackupRepositoryMaintenanceFailed, StartTimestamp: past(time.Minute * time.Duration(len(failures)-i)), Message: message,
		})
	}
	f.add(created)
	return created
}

func (f *fixture) job(of, name string) *batchv1.Job {
	created := &batchv1.Job{ObjectMeta: meta("velero", name, time.Minute)}
	created.Labels = map[string]string{api.LabelRepository: of}
	f.add(created)
	return created
}

// restore adds a PodVolumeRestore to a pod, or to a deleted pod.
func (f *fixture) restore(name string, pod *corev1.Pod) *velerov1.PodVolumeRestore {
	created := &velerov1.PodVolumeRestore{ObjectMeta: meta("velero", name, time.Minute), Spec: velerov1.PodVolumeRestoreSpec{
		UploaderType: "kopia", Volume: "data", Pod: corev1.ObjectReference{Namespace: "app", Name: "gone"},
	}}
	if pod != nil {
		created.Spec.Pod.Name = pod.Name
		f.add(pod)
	}
	f.add(created)
	return created
}

// download adds a DataDownload to a claim.
func (f *fixture) download(name, claim string, change ...func(*velerov2alpha1.DataDownload)) {
	created := &velerov2alpha1.DataDownload{ObjectMeta: meta("velero", name, time.Minute), Spec: velerov2alpha1.DataDownloadSpec{
		TargetVolume: velerov2alpha1.TargetVolumeSpec{Namespace: "app", PVC: claim},
	}}
	for _, one := range change {
		one(created)
	}
	f.add(created)
}
