package sim

import (
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	veleroNamespace = "velero"
	appNamespace    = "app"
	configMapName   = "node-agent-config"
	driver          = "sim.csi.example.com"
	className       = "sim"
	snapshotClass   = "sim-snapshots"
	priorityName    = "backup"
)

// furnish creates what exists before the first agent starts.
func (s *Simulation) furnish() {
	s.Create("namespaces", "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: veleroNamespace}})
	s.Create("namespaces", "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: appNamespace, Finalizers: []string{namespaceFinalizer}}})
	for number := range s.plan.Nodes {
		name := fmt.Sprintf("node-%d", number+1)
		s.nodes = append(s.nodes, name)
		s.createNode(name)
	}
	s.Create("configmaps", veleroNamespace, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: configMapName},
		Data:       map[string]string{"config": s.configuration()},
	})
	agents := podTemplate("node-agent", "node-agent", "server")
	s.Create("daemonsets", veleroNamespace, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "node-agent"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: agents.Labels}, Template: agents,
	}})
	server := podTemplate("velero", "server")
	s.Create("deployments", veleroNamespace, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "velero"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: server.Labels}, Template: server,
	}})
	s.Create("backups", veleroNamespace, &velerov1.Backup{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}})
	s.Create("restores", veleroNamespace, &velerov1.Restore{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}})
	s.Create("backupstoragelocations", veleroNamespace, &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	s.createClass()
	if s.plan.Priority {
		s.createPriority()
	}
	s.furnishRepositories()
	s.furnishVelero()
	for _, node := range s.nodes[:s.plan.Foreign] {
		s.Create("datauploads", veleroNamespace, &velerov2alpha1.DataUpload{
			ObjectMeta: metav1.ObjectMeta{Name: foreignPrefix + node}, Spec: velerov2alpha1.DataUploadSpec{DataMover: "example"},
			Status: velerov2alpha1.DataUploadStatus{Phase: velerov2alpha1.DataUploadPhaseInProgress, Node: node},
		})
	}
	s.Create("volumesnapshotclasses", "", &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: snapshotClass}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	})
}

func (s *Simulation) createClass() {
	s.Create("storageclasses", "", &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: className}, Provisioner: driver, VolumeBindingMode: new(s.plan.binding()),
		ReclaimPolicy: new(s.plan.reclaim()),
	})
}

func (s *Simulation) createPriority() {
	const value = 1000
	s.Create("priorityclasses", "", &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: priorityName}, Value: value})
}

func (s *Simulation) createNode(name string) {
	s.Create("nodes", "", &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: s.Now()}}},
	})
}

// configuration returns the content of the agents' ConfigMap.
func (s *Simulation) configuration() string {
	priority := ""
	if s.plan.Priority {
		priority = fmt.Sprintf(`,"priorityClassName":%q`, priorityName)
	}
	return fmt.Sprintf(`{"loadConcurrency":{"globalConfig":%d,"prepareQueueLength":%d}%s}`, s.plan.Slots, s.plan.Queue, priority)
}

func podTemplate(name string, args ...string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"name": name}},
		Spec: corev1.PodSpec{
			ServiceAccountName: "velero",
			Containers:         []corev1.Container{{Name: name, Image: "velero/velero:v1.18.3", Command: []string{"/velero"}, Args: args}},
		},
	}
}
