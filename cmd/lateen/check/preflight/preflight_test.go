package preflight

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

func refusal(message string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New(message))
}

// now is the time of the API server.
var now = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// world is a cluster in which every check is ok, and what a test changes in it.
type world struct {
	agents      *appsv1.DaemonSet
	labels      map[string]string // of the agents' pods
	node        *corev1.Node
	lease       *coordinationv1.Lease
	volume      *corev1.PersistentVolume
	class       *unstructured.Unstructured // of snapshots
	more        []runtime.Object           // for the dynamic client
	forbidden   string                     // the resource on which the agents have no rights
	refused     map[string]error           // of movers, by kind
	mayNot      error                      // of movers of another identity
	unscheduled bool
	powerless   bool   // the user may create no pod
	without     bool   // the namespace of Velero does not exist
	unread      string // the resource that cannot be read
	undefined   string // the definition that does not exist
	old         string // the definition without spec.cancel
	Installation
}

func newWorld() *world {
	in := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "velero", Name: name} }
	name := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	w := &world{
		labels: map[string]string{"name": "node-agent", "pod-template-generation": "1"},
		agents: &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "node-agent", Annotations: map[string]string{appsv1.DeprecatedTemplateGeneration: "1"}}, Spec: appsv1.DaemonSetSpec{Selector: metav1.SetAsLabelSelector(labels.Set{"name": "node-agent"})}, Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, UpdatedNumberScheduled: 1, NumberReady: 1}},
		node:   &corev1.Node{ObjectMeta: name("node-1"), Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}},
		lease: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "node-1"},
			Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now}}},
		volume: &corev1.PersistentVolume{ObjectMeta: name("pv-1"), Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.test"}}}},
		class: snapshotClass("gold"),
		Installation: Installation{Namespace: "velero", Movers: objects.Template{Image: "velero"},
			Server: &appsv1.Deployment{ObjectMeta: in("velero"), Status: appsv1.DeploymentStatus{AvailableReplicas: 1}}},
	}
	w.Server.Spec.Template.Spec.Containers = []corev1.Container{{Args: []string{"server", "--features=EnableCSI"}}}
	w.agents.Spec.Template.Spec = corev1.PodSpec{ServiceAccountName: "lateen", Containers: []corev1.Container{{Args: []string{"node-agent"}}}}
	return w
}

func snapshotClass(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": map[string]any{"name": name}, "driver": "csi.test",
	}}
}

// createPod answers the dry run of a mover.
func (w *world) createPod(t *testing.T, action clienttesting.Action) (bool, runtime.Object, error) {
	t.Helper()
	create, _ := action.(clienttesting.CreateAction)
	pod, _ := create.GetObject().(*corev1.Pod)
	require.Equal(t, "velero", pod.Spec.Containers[0].Image)
	require.Equal(t, map[string]string{"PodVolumeBackup": "pod-volume", "DataUpload": "data-mover"}[pod.OwnerReferences[0].Kind], pod.Spec.Containers[0].Args[0])
	return true, pod, w.refused[pod.OwnerReferences[0].Kind]
}

// run returns the findings by check.
func (w *world) run(t *testing.T) map[string]Finding {
	t.Helper()
	agent := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "node-agent-1", Labels: w.labels}, Spec: corev1.PodSpec{NodeName: w.node.Name}}
	if w.agents != nil && w.agents.Status.NumberReady > 0 {
		agent.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	if w.unscheduled {
		agent.Spec.NodeName = ""
	}
	all := []runtime.Object{agent, w.node, w.lease, w.volume, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "csi.test"}}
	if w.agents != nil {
		all = append(all, w.agents)
	}
	kube := fake.NewClientset(all...)
	w.As = func(account string) (kubernetes.Interface, error) {
		require.Equal(t, "lateen", account)
		agents := fake.NewClientset()
		agents.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if w.mayNot != nil {
				return true, nil, w.mayNot
			}
			return w.createPod(t, action)
		})
		return agents, nil
	}
	kube.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetResource().Resource == w.unread {
			return true, nil, errors.New("no answer")
		}
		switch create, is := action.(clienttesting.CreateAction); {
		case !is:
		case action.GetResource().Resource == "pods":
			return w.createPod(t, action)
		case action.GetResource().Resource == "configmaps":
			if w.without && action.GetNamespace() == "velero" {
				return true, nil, apierrors.NewNotFound(corev1.Resource("namespaces"), "velero")
			}
			return true, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now)}}, nil
		case action.GetResource().Resource == "selfsubjectaccessreviews":
			review, _ := create.GetObject().(*authorizationv1.SelfSubjectAccessReview)
			review.Status.Allowed = !w.powerless
			return true, review, nil
		case action.GetResource().Resource == "subjectaccessreviews":
			review, _ := create.GetObject().(*authorizationv1.SubjectAccessReview)
			require.Equal(t, "system:serviceaccount:velero:lateen", review.Spec.User)
			review.Status.Allowed = review.Spec.ResourceAttributes.Resource != w.forbidden
			return true, review, nil
		}
		return false, nil, nil
	})
	generic := w.more
	if w.class != nil {
		generic = append(generic, w.class)
	}
	for _, object := range deploy.Definitions() {
		definition, err := deploy.Manifest(object)
		require.NoError(t, err)
		if versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions"); definition.GetName() == w.old {
			unstructured.RemoveNestedField(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", "cancel")
			require.NoError(t, unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions"))
		}
		if definition.GetName() != w.undefined {
			generic = append(generic, definition)
		}
	}
	kinds := map[schema.GroupVersionResource]string{cli.Definitions(): "CustomResourceDefinitionList", snapshotClasses(): "VolumeSnapshotClassList"}
	w.Kube, w.Dynamic = kube, dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, generic...)
	found := map[string]Finding{}
	for _, one := range w.Run(t.Context()) {
		found[one.Check] = one
	}
	return found
}

func TestAClusterWithEverythingHasNoFinding(t *testing.T) {
	for check, found := range newWorld().run(t) {
		require.Equal(t, OK, found.Status, "%s: %s", check, found.Message)
		require.Empty(t, found.Remedy)
	}
	require.Len(t, newWorld().run(t), 8)
}

func TestEachFindingHasARemedy(t *testing.T) {
	velero := func(w *world) { w.agents.Spec.Template.Spec.Containers[0].Args = []string{"node-agent", "server"} }
	for name, test := range map[string]struct {
		change  func(*world)
		check   string
		status  Status
		message string
		remedy  string
	}{
		"no definition": {func(w *world) { w.undefined = "datauploads.velero.io" }, "definitions", Failed, "not served: datauploads.velero.io v2alpha1",
			"lateen install creates Velero's definitions, also alone with --crds-only"},
		"definitions of Velero 1.16": {func(w *world) { w.old = "podvolumebackups.velero.io" }, "definitions", Failed, "older than those of Velero 1.17: podvolumebackups.velero.io",
			"lateen install --crds-only --apply"},
		"older definitions, before Lateen": {func(w *world) {
			w.old, w.undefined, w.Before = "podvolumebackups.velero.io", "datauploads.velero.io", true
		}, "definitions", Failed,
			"not served: datauploads.velero.io v2alpha1; older than those of Velero 1.17: podvolumebackups.velero.io", "lateen install --crds-only --apply"},
		"no server":                          {func(w *world) { w.Server = nil }, "server", Failed, "no Deployment in namespace velero runs Velero's server", "lateen install"},
		"a server that is down":              {func(w *world) { w.Server.Status.AvailableReplicas = 0 }, "server", Failed, "Deployment velero has no available pod", "describe pods"},
		"an agent that no node has room for": {func(w *world) { w.unscheduled, w.agents.Status.NumberReady = true, 0 }, "agents", Failed, "0 of 1 pods ready", "describe pods"},
		"no agents":                          {func(w *world) { w.agents = nil }, "agents", Failed, "DaemonSet node-agent does not exist in namespace velero", "lateen install"},
		"no agents yet":                      {func(w *world) { w.agents, w.Before = nil, true }, "agents", Warning, "DaemonSet node-agent does not exist", "lateen install"},
		"a rollout":                          {func(w *world) { w.labels["pod-template-generation"] = "0" }, "agents", Failed, "DaemonSet node-agent of Lateen: 1 of 1 pods ready", "rollout status"},
		"agents of Velero":                   {velero, "agents", Warning, "DaemonSet node-agent of Velero: 1 of 1 pods ready", "lateen adopt replaces them"},
		"agents of Velero yet":               {func(w *world) { velero(w); w.Before = true }, "agents", OK, "DaemonSet node-agent of Velero: 1 of 1 pods ready", ""},
		"other agents":                       {func(w *world) { w.agents.Spec.Template.Spec.Containers[0].Args = nil }, "agents", Failed, "DaemonSet node-agent: ", "only agents of Velero and Lateen"},
		"no node for agents":                 {func(w *world) { w.agents.Status = appsv1.DaemonSetStatus{} }, "agents", Failed, "0 of 0 pods ready; no node has an agent", "node selector"},
		"an agent on a node that is down": {func(w *world) {
			w.agents.Status.UpdatedNumberScheduled, w.agents.Status.NumberReady, w.node.Status.Conditions = 0, 0, nil
		}, "agents", Warning, "0 of 1 pods ready; not Ready: node node-1", "when they are Ready"},
		"an agent that is not ready": {func(w *world) { w.agents.Status.NumberReady = 0 }, "agents", Failed, "0 of 1 pods ready", "describe pods"},
		"a Windows node":             {func(w *world) { w.node.Labels = map[string]string{corev1.LabelOSStable: "windows"} }, "agents", Warning, "DaemonSet node-agent-windows does not exist", "--use-node-agent-windows"},
		"a node without an agent": {func(w *world) {
			w.node.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
		}, "agents", Warning,
			"no agent on some nodes: taint gpu:NoSchedule is not tolerated (node node-1)", "add tolerations"},
		"a missing right": {func(w *world) { w.forbidden = "jobs" }, "rights", Failed,
			"ServiceAccount lateen may not create jobs.batch, delete jobs.batch, get jobs.batch, list jobs.batch, patch jobs/status.batch and 1 more", "lateen adopt"},
		"Pod Security against pod volumes": {func(w *world) {
			w.refused = map[string]error{"PodVolumeBackup": refusal(`violates PodSecurity "baseline:latest"`)}
		}, "movers", Warning,
			`the API server refuses the mover of a PodVolumeBackup: pods is forbidden: violates PodSecurity "baseline:latest"`, "kubectl label --overwrite namespace velero pod-security.kubernetes.io/enforce=privileged"},
		"a webhook":      {func(w *world) { w.refused = map[string]error{"DataUpload": refusal("denied")} }, "movers", Failed, "mover of a DataUpload: ", "a webhook"},
		"a quota in use": {func(w *world) { w.refused = map[string]error{"DataUpload": refusal("exceeded quota: pods")} }, "movers", Warning, "exceeded quota: pods", "quota"},
		"no connection":  {func(w *world) { w.refused = map[string]error{"DataUpload": errors.New("EOF")} }, "movers", Unknown, "dry run of a mover: EOF", ""},
		"a webhook without a reason": {func(w *world) {
			w.refused = map[string]error{"DataUpload": &apierrors.StatusError{ErrStatus: metav1.Status{Code: 400, Message: "admission webhook denied the request"}}}
		}, "movers", Failed, "denied the request", "a webhook"},
		"nodes that cannot be read":  {func(w *world) { w.unread = "nodes" }, "agents", Unknown, "list nodes: no answer", ""},
		"another identity":           {func(w *world) { w.mayNot = refusal("cannot impersonate") }, "movers", OK, "accepts movers of snapshots and of pod volumes, tried as this user", ""},
		"a user without rights":      {func(w *world) { w.mayNot, w.powerless = refusal("cannot impersonate"), true }, "movers", Unknown, "needs the right to create pods", ""},
		"no snapshots by the server": {func(w *world) { w.Server.Spec.Template.Spec.Containers[0].Args = []string{"server"} }, "snapshots", Warning, "takes no CSI snapshots", "add --features=EnableCSI to the arguments of Deployment velero"},
		"no snapshot class":          {func(w *world) { w.class = nil }, "snapshots", Warning, "no VolumeSnapshotClass for the driver of storage class fast", "file system backups"},
		"two snapshot classes": {func(w *world) { w.more = []runtime.Object{snapshotClass("silver")} }, "snapshots", Warning,
			"several VolumeSnapshotClasses for the driver of storage class fast", "set label velero.io/csi-volumesnapshot-class=true"},
		"two snapshot classes, one of which is selected": {func(w *world) {
			w.class.SetLabels(map[string]string{velerov1.VolumeSnapshotClassSelectorLabel: "true"})
			w.more = []runtime.Object{snapshotClass("silver")}
		}, "snapshots", OK, "CSI snapshots of storage class fast", ""},
		"a volume whose directory is not known": {func(w *world) {
			w.volume.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{}}
		},
			"host-paths", Warning, "agents cannot derive the directory of persistent volume pv-1", "--host-path"},
		"a clock ahead":  {func(w *world) { w.lease.Spec.RenewTime.Time = now.Add(11 * time.Second) }, "clocks", Warning, "node-1 (11s ahead)", "synchronize"},
		"a clock behind": {func(w *world) { w.lease.Spec.RenewTime.Time = now.Add(-61 * time.Second) }, "clocks", Warning, "node-1 (up to 1m1s behind)", "synchronize"},
		"a node that is down": {func(w *world) {
			w.lease.Spec.RenewTime.Time, w.node.Status.Conditions = now.Add(-time.Hour), nil
		}, "clocks", OK, "the clocks of 0 Ready nodes agree", ""},
		"no namespace yet": {func(w *world) { w.without = true }, "clocks", OK, "the clocks of 1 Ready nodes agree", ""},
		"no answer":        {func(w *world) { w.unread = "storageclasses" }, "snapshots", Unknown, "list storage classes: no answer", ""},
	} {
		w := newWorld()
		test.change(w)
		found, has := w.run(t)[test.check]
		require.True(t, has, name)
		require.Equal(t, test.status, found.Status, "%s: %s", name, found.Message)
		require.Contains(t, found.Message, test.message, name)
		require.Contains(t, found.Remedy, test.remedy, name)
		require.Equal(t, test.remedy == "", found.Remedy == "", name)
	}
}

func TestOnlyAgentsOfLateenNeedItsRightsAndPaths(t *testing.T) {
	w := newWorld()
	w.agents.Spec.Template.Spec.Containers[0].Args = []string{"node-agent", "--host-path=/host_pods"}
	require.NotContains(t, w.run(t), "host-paths")
	w = newWorld()
	w.agents.Spec.Template.Spec.Containers[0].Args = []string{"node-agent", "server"}
	require.NotContains(t, w.run(t), "rights")
	w.labels[api.LabelAgent] = "true"
	found := w.run(t)
	require.Equal(t, "DaemonSet node-agent of Lateen: 1 of 1 pods ready", found["agents"].Message, "the image of Velero's agents was replaced")
	require.Equal(t, OK, found["rights"].Status)
}
