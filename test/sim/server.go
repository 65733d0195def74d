package sim

import (
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// job is a transfer that Velero's server asks for, with the application that it belongs to.
type job struct {
	Work

	number   int
	source   *apiserver.Object // pod, or claim of an Upload
	snapshot string            // of an Upload
	transfer types.UID         // once it is asked for
	original string            // content of an Upload's volume
	asked    time.Time         // when it was asked for
	ended    bool              // it was terminal within its bound
	accepted bool              // by Velero's agent
	byVelero bool              // Velero's agent has ended it
}

// server plays Velero's server: it asks for transfers.
func (s *Simulation) server() (all []choice) {
	if s.work == nil {
		for number, work := range s.plan.Work {
			s.work = append(s.work, &job{Work: work, number: number})
		}
	}
	for _, j := range s.work {
		if act, do := s.ask(j); do != nil {
			all = append(all, choice{fmt.Sprintf("velero: %s of work %d", act, j.number), often, do})
		}
	}
	return all
}

// ask returns the next act of Velero's server for a transfer, or nil.
func (s *Simulation) ask(j *job) (string, func()) {
	name := fmt.Sprintf("app-%d", j.number)
	node := s.nodes[j.Node]
	if j.Veleros {
		node = veleroNode
	}
	switch {
	case j.transfer != "" || s.abandoned(j):
		return "", nil
	case j.source == nil:
		return "furnishes the application", func() { s.furnishApp(j, name, node) }
	case j.Kind == Upload && j.snapshot == "":
		return "creates the snapshot", func() {
			j.snapshot = s.Create("volumesnapshots", appNamespace, &snapshotv1.VolumeSnapshot{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "velero-" + name + "-"},
				Spec: snapshotv1.VolumeSnapshotSpec{
					Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &name}, VolumeSnapshotClassName: new(snapshotClass),
				},
			}).GetName()
		}
	case j.Kind == Upload && !s.snapshotReady(j.snapshot):
		return "", nil
	}
	return "creates the " + string(j.Kind), func() { j.transfer, j.asked = s.transfer(j, name, node).GetUID(), time.Now() }
}

// abandoned reports whether Velero's server no longer asks for a transfer: what it needs was deleted.
func (s *Simulation) abandoned(j *job) bool {
	gone := j.source != nil && s.faults.deleted[j.source.GetUID()] || j.snapshot != "" && s.API.Get("volumesnapshots", appNamespace, j.snapshot) == nil
	namespace := s.API.Get("namespaces", "", appNamespace)
	return j.transfer == "" && (gone || namespace == nil || namespace.GetDeletionTimestamp() != nil)
}

func (s *Simulation) snapshotReady(name string) bool {
	object := s.API.Get("volumesnapshots", appNamespace, name)
	if object == nil {
		return false
	}
	status := apiserver.As[snapshotv1.VolumeSnapshot](object).Status
	return status != nil && ptr.Deref(status.ReadyToUse, false)
}

// furnishApp creates the application: a pod with a volume, a claim with a volume, or what a restore finds.
func (s *Simulation) furnishApp(j *job, name, node string) {
	if j.Kind == Upload || j.Kind == Download {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(className),
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}
		if j.Kind == Download {
			claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{velerov1.DynamicPVRestoreLabel: appNamespace + "." + name}}
		}
		j.source = s.Create("persistentvolumeclaims", appNamespace, claim)
		if j.Kind == Upload || j.InPlace {
			j.original = "data of " + name
			s.storage.volumes["vol-"+name] = j.original
			volume := persistentVolume("vol-"+name, "pv-"+name, corev1.PersistentVolumeReclaimDelete, apiserver.As[corev1.PersistentVolumeClaim](j.source))
			if j.InPlace {
				volume.Spec.ClaimRef.UID, volume.Spec.PersistentVolumeReclaimPolicy = "deleted", corev1.PersistentVolumeReclaimRetain
			}
			created := s.Create("persistentvolumes", "", volume)
			if j.Kind == Upload {
				s.Join(j.source, created)
				return
			}
		}
		node = "" // the scheduler selects it
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "app", Image: "app"}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	switch j.Kind {
	case Restore:
		pod.Spec.InitContainers = []corev1.Container{{Name: waitContainer, Image: "velero"}}
	case Download:
		pod.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	case Backup, Upload:
	}
	created := s.Create("pods", appNamespace, pod)
	if j.Kind == Backup {
		s.begins(created)
	}
	if j.Kind != Download {
		j.source = created
	}
}

// transfer creates the custom resource as Velero's server does.
func (s *Simulation) transfer(j *job, name, node string) *apiserver.Object {
	meta := metav1.ObjectMeta{GenerateName: "work-"}
	pod := corev1.ObjectReference{Kind: "Pod", Namespace: appNamespace, Name: name, UID: j.source.GetUID()}
	owned := func(plural, kind string) {
		owner := s.API.Get(plural, veleroNamespace, "nightly")
		meta.OwnerReferences = []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: kind, Name: "nightly", UID: owner.GetUID(), Controller: new(true)}}
	}
	mover := ""
	if j.Blocks {
		mover = "velero-block"
	}
	var object any
	switch j.Kind {
	case Backup:
		owned("backups", "Backup")
		object = &velerov1.PodVolumeBackup{ObjectMeta: meta, Spec: velerov1.PodVolumeBackupSpec{
			Node: node, Pod: pod, Volume: "data", UploaderType: "kopia", BackupStorageLocation: "default",
		}}
	case Restore:
		owned("restores", "Restore")
		object = &velerov1.PodVolumeRestore{ObjectMeta: meta, Spec: velerov1.PodVolumeRestoreSpec{
			Pod: pod, Volume: "data", UploaderType: "kopia", BackupStorageLocation: "default", SnapshotID: "snapshot", SourceNamespace: appNamespace,
		}}
	case Upload:
		owned("backups", "Backup")
		object = &velerov2alpha1.DataUpload{ObjectMeta: meta, Spec: velerov2alpha1.DataUploadSpec{
			DataMover: mover, SnapshotType: velerov2alpha1.SnapshotTypeCSI, SourcePVC: name, SourceNamespace: appNamespace, BackupStorageLocation: "default",
			CSISnapshot:      &velerov2alpha1.CSISnapshotSpec{VolumeSnapshot: j.snapshot, StorageClass: className, SnapshotClass: snapshotClass},
			OperationTimeout: metav1.Duration{Duration: 10 * time.Minute},
		}}
	case Download:
		owned("restores", "Restore")
		existing := ""
		if j.InPlace {
			existing = "pv-" + name
		}
		object = &velerov2alpha1.DataDownload{ObjectMeta: meta, Spec: velerov2alpha1.DataDownloadSpec{
			DataMover: mover, TargetVolume: velerov2alpha1.TargetVolumeSpec{PVC: name, PV: existing, Namespace: appNamespace}, BackupStorageLocation: "default",
			SnapshotID: "snapshot", SourceNamespace: appNamespace, OperationTimeout: metav1.Duration{Duration: 10 * time.Minute}, NodeOS: "linux",
		}}
	}
	return s.Create(plural(j.Kind), veleroNamespace, object)
}

// collecting plays the garbage collector.
func (s *Simulation) collecting() (all []choice) {
	for _, garbage := range s.API.Garbage() {
		all = append(all, choice{"garbage collector: deletes " + garbage.Plural + " " + garbage.Key(), seldom, func() {
			if garbage.Plural == "jobs" {
				s.promises.jobDeleted("the garbage collector", garbage.Object)
			}
			s.Delete(garbage.Plural, garbage.Object)
		}})
	}
	return all
}

// deploy creates the pod of an agent on a node, and starts the agent.
func (s *Simulation) deploy(node string) {
	template := podTemplate("node-agent", "node-agent", "server")
	container := corev1.Container{Name: "node-agent", Image: "lateen", Command: []string{"/lateen"}, Args: []string{"node-agent"}}
	if s.plan.Adopted {
		container = template.Spec.Containers[0]
	}
	pod := s.Create("pods", veleroNamespace, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "node-agent-", Labels: map[string]string{"name": "node-agent", "role": "node-agent"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{container}, ServiceAccountName: template.Spec.ServiceAccountName},
	})
	s.begins(pod)
	s.start(node, string(pod.GetUID()))
}
