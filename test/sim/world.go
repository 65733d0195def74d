package sim

import (
	"encoding/json"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/lateen-project/lateen/test/sim/apiserver"
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

// content encodes a typed object for the API server.
func content(object any) map[string]any {
	data, err := json.Marshal(object)
	fields := map[string]any{}
	if err == nil {
		err = utiljson.Unmarshal(data, &fields)
	}
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", object, err))
	}
	return fields
}

// create creates an object of an actor, which must succeed.
func (s *Simulation) create(plural, namespace string, object any) *apiserver.Object {
	fields := content(object)
	status := fields["status"]
	created, err := s.api.Create(plural, namespace, fields, false)
	if err != nil {
		panic(fmt.Sprintf("create %s: %v", plural, err))
	}
	if status != nil {
		return s.patch(plural, created, map[string]any{"status": status})
	}
	return created
}

// patch changes fields of an object and of its status as an actor does; nil values remove.
func (s *Simulation) patch(plural string, object *apiserver.Object, fields map[string]any) *apiserver.Object {
	changed, patch := object, content(fields)
	_, status := patch["status"]
	status = status && s.api.HasStatus(plural)
	for _, sub := range []string{"", "status"} {
		if sub == "status" && !status || sub == "" && status && len(patch) == 1 {
			continue
		}
		var err error
		changed, err = s.api.Update(plural, object.GetNamespace(), object.GetName(), sub, false, func(now map[string]any) (map[string]any, error) {
			return merge(now, patch), nil
		})
		if err != nil {
			panic(fmt.Sprintf("patch %s %s: %v", plural, object.Key(), err))
		}
		if s.api.Get(plural, object.GetNamespace(), object.GetName()) == nil {
			break // its last finalizer is gone
		}
	}
	return changed
}

// merge is a JSON merge patch (RFC 7386).
func merge(into, patch map[string]any) map[string]any {
	for key, value := range patch {
		deeper, isMap := value.(map[string]any)
		below, both := into[key].(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isMap && both:
			into[key] = merge(below, deeper)
		default:
			into[key] = value
		}
	}
	return into
}

// furnish creates what exists before the first agent starts.
func (s *Simulation) furnish() {
	s.create("namespaces", "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: veleroNamespace}})
	s.create("namespaces", "", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: appNamespace, Finalizers: []string{namespaceFinalizer}}})
	for number := range s.plan.Nodes {
		name := fmt.Sprintf("node-%d", number+1)
		s.nodes = append(s.nodes, name)
		s.createNode(name)
	}
	s.create("configmaps", veleroNamespace, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: configMapName},
		Data:       map[string]string{"config": s.configuration()},
	})
	agents := podTemplate("node-agent", "node-agent", "server")
	s.create("daemonsets", veleroNamespace, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "node-agent"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: agents.Labels}, Template: agents,
	}})
	server := podTemplate("velero", "server")
	s.create("deployments", veleroNamespace, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "velero"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: server.Labels}, Template: server,
	}})
	s.create("backups", veleroNamespace, &velerov1.Backup{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}})
	s.create("restores", veleroNamespace, &velerov1.Restore{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}})
	s.create("backupstoragelocations", veleroNamespace, &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	s.createClass()
	if s.plan.Priority {
		s.createPriority()
	}
	s.furnishRepositories()
	s.furnishVelero()
	for _, node := range s.nodes[:s.plan.Foreign] {
		s.create("datauploads", veleroNamespace, &velerov2alpha1.DataUpload{
			ObjectMeta: metav1.ObjectMeta{Name: foreignPrefix + node}, Spec: velerov2alpha1.DataUploadSpec{DataMover: "example"},
			Status: velerov2alpha1.DataUploadStatus{Phase: velerov2alpha1.DataUploadPhaseInProgress, Node: node},
		})
	}
	s.create("volumesnapshotclasses", "", &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: snapshotClass}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	})
}

func (s *Simulation) createClass() {
	s.create("storageclasses", "", &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: className}, Provisioner: driver, VolumeBindingMode: new(s.plan.binding()),
		ReclaimPolicy: new(s.plan.reclaim()),
	})
}

func (s *Simulation) createPriority() {
	const value = 1000
	s.create("priorityclasses", "", &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: priorityName}, Value: value})
}

func (s *Simulation) createNode(name string) {
	s.create("nodes", "", &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: s.now()}}},
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

// now returns the time of the API server.
func (s *Simulation) now() metav1.Time { return metav1.NewTime(s.api.Now()) }
