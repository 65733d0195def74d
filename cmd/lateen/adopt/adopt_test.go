package adopt

import (
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
)

// installation is a Velero with agents on Linux and on Windows nodes, one pod each.
type installation struct {
	*testing.T
	kube     *fake.Clientset
	dynamic  *dynamicfake.FakeDynamicClient
	writes   int
	fails    int // the number of the write that fails; 0: none
	failed   clienttesting.Action
	warnings strings.Builder
}

// lists are the kinds of lists by resource.
func lists() map[schema.GroupVersionResource]string {
	all := map[schema.GroupVersionResource]string{
		cli.DaemonSets(): "DaemonSetList", {Group: "velero.io", Version: "v1", Resource: "backuprepositories"}: "BackupRepositoryList",
		corev1.SchemeGroupVersion.WithResource("serviceaccounts"):                              "ServiceAccountList",
		admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies"): "ValidatingAdmissionPolicyList",
	}
	for resource, kind := range map[string]string{"roles": "Role", "rolebindings": "RoleBinding", "clusterroles": "ClusterRole", "clusterrolebindings": "ClusterRoleBinding"} {
		all[rbacv1.SchemeGroupVersion.WithResource(resource)] = kind + "List"
	}
	for _, kind := range api.Kinds() {
		all[kind.GVR()] = kind.Name + "List"
	}
	return all
}

func newInstallation(t *testing.T) *installation {
	t.Helper()
	i := &installation{T: t, kube: fake.NewClientset()}
	var agents []runtime.Object
	for _, name := range []string{api.DaemonSetName, api.WindowsDaemonSetName} {
		owner := velerosAgents(t, name, func(*corev1.PodSpec) {})
		agents = append(agents, owner)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "velero"}, Spec: corev1.PodSpec{ServiceAccountName: "velero"}}
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
		require.NoError(t, i.kube.Tracker().Add(pod))
	}
	i.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists(), agents...)
	i.dynamic.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		object := &unstructured.Unstructured{}
		err := object.UnmarshalJSON(patch.GetPatch())
		if err == nil {
			err = i.dynamic.Tracker().Create(patch.GetResource(), object, patch.GetNamespace())
		}
		if apierrors.IsAlreadyExists(err) {
			err = i.dynamic.Tracker().Update(patch.GetResource(), object, patch.GetNamespace())
		}
		return true, object, err
	})
	fail := func(action clienttesting.Action) (bool, runtime.Object, error) {
		if slices.Contains([]string{"get", "list", "watch"}, action.GetVerb()) {
			return false, nil, nil
		}
		if i.writes++; i.writes != i.fails {
			return false, nil, nil
		}
		i.failed = action
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("no rights"))
	}
	i.kube.PrependReactor("*", "*", fail)
	i.dynamic.PrependReactor("*", "*", fail)
	return i
}

func (i *installation) run(undo bool) error {
	a := adoption{
		Client:   &cli.Client{Kube: i.kube, Dynamic: i.dynamic, Namespace: "velero", Apply: true, Out: io.Discard},
		options:  options{image: "example.test/lateen:v1", undo: undo, timeout: time.Minute},
		prompt:   cli.Prompt{Out: io.Discard, Force: true},
		warnings: &i.warnings,
	}
	return a.run(i.Context())
}

// state returns all objects, by kind and name.
func (i *installation) state() map[string]any {
	all := map[string]any{}
	for resource := range lists() {
		list, err := i.dynamic.Resource(resource).List(i.Context(), metav1.ListOptions{})
		require.NoError(i, err)
		for _, object := range list.Items {
			object.SetResourceVersion("")
			all[object.GetKind()+" "+object.GetName()] = object.Object
		}
	}
	pods, err := i.kube.CoreV1().Pods("velero").List(i.Context(), metav1.ListOptions{})
	require.NoError(i, err)
	for _, pod := range pods.Items {
		all["Pod "+pod.Name] = pod
	}
	return all
}

// Each write fails once. The same command then does what is left.
func TestAFailedCommandIsCompletedByTheNext(t *testing.T) {
	synctest.Test(t, failedCommands) // waiting for a roll-out takes no time
}

func failedCommands(t *testing.T) {
	t.Helper()
	whole := newInstallation(t)
	require.NoError(t, whole.run(false))
	adopted, adopts := whole.state(), whole.writes
	require.Contains(t, adopted, "ClusterRole lateen-velero")
	require.NotContains(t, adopted, "Pod node-agent")
	require.NoError(t, whole.run(true))
	restored, all := whole.state(), whole.writes
	require.Equal(t, []string{"DaemonSet node-agent", "DaemonSet node-agent-windows"}, slices.Sorted(maps.Keys(restored)))
	for name, agents := range restored {
		require.Equal(t, newInstallation(t).state()[name].(map[string]any)["spec"], agents.(map[string]any)["spec"])
	}

	for fails := 1; fails <= all; fails++ {
		i := newInstallation(t)
		i.fails = fails
		undo := fails > adopts
		if undo {
			require.NoError(t, i.run(false))
		}
		err := i.run(undo)
		require.ErrorContains(t, err, "run the same command again", "write %d", fails)
		require.ErrorContains(t, err, "no rights")
		i.requireOthersDone(undo, undo && fails > all-2)
		require.NoError(t, i.run(undo))
		want := adopted
		if undo {
			want = restored
		}
		require.Equal(t, want, i.state(), "write %d: %s %s", fails, i.failed.GetVerb(), i.failed.GetResource().Resource)
	}
}

// Velero's agents do not notice a mover that runs when they start.
func TestUndoMarksAcceptedTransfersWhoseMoversRunAsPrepared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInstallation(t)
		require.NoError(t, i.run(false))
		for _, transfer := range []struct {
			kind         api.Kind
			name, phase  string
			owner, mover string
			want         string
		}{
			{api.PodVolumeBackup(), "b-runs", "Accepted", "b-runs", "Running", "Prepared"},
			{api.DataUpload(), "u-runs", "Accepted", "u-runs", "Running", "Prepared"},
			{api.DataUpload(), "u-waits", "Accepted", "u-waits", "Pending", "Accepted"},
			{api.DataDownload(), "d-other", "Accepted", "another one", "Running", "Accepted"},
			{api.DataDownload(), "d-works", "InProgress", "d-works", "Running", "InProgress"},
		} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: transfer.name}, Spec: corev1.PodSpec{NodeName: "worker-1"}}
			pod.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(transfer.owner), Controller: new(true)}}
			pod.Status.Phase = corev1.PodPhase(transfer.mover)
			require.NoError(t, i.kube.Tracker().Add(pod))
			object := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"phase": transfer.phase}}}
			object.SetGroupVersionKind(transfer.kind.GVK)
			object.SetNamespace("velero")
			object.SetName(transfer.name)
			object.SetUID(types.UID(transfer.name))
			require.NoError(t, i.dynamic.Tracker().Create(transfer.kind.GVR(), object, "velero"))
			defer func() {
				found, err := i.dynamic.Resource(transfer.kind.GVR()).Namespace("velero").Get(t.Context(), transfer.name, metav1.GetOptions{})
				require.NoError(t, err)
				phase, _, _ := unstructured.NestedString(found.Object, "status", "phase")
				require.Equal(t, transfer.want, phase, transfer.name)
				node, _, _ := unstructured.NestedString(found.Object, "status", "node")
				require.Equal(t, transfer.want == "Prepared", node == "worker-1", transfer.name)
			}()
		}
		require.NoError(t, i.run(true))
	})
}

func TestUndoWaitsUntilRestoredVolumesAreBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInstallation(t)
		require.NoError(t, i.run(false))
		downloads := i.dynamic.Resource(api.DataDownload().GVR()).Namespace("velero")
		object := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"phase": "InProgress"}}}
		object.SetGroupVersionKind(api.DataDownload().GVK)
		object.SetName("restored")
		object.SetAnnotations(map[string]string{api.AnnotationMoved: "2026-01-01T00:00:00Z"})
		_, err := downloads.Create(t.Context(), object, metav1.CreateOptions{})
		require.NoError(t, err)
		require.ErrorContains(t, i.run(true), "wait for DataDownloads whose restored volumes are being bound (restored): ")
		require.Equal(t, "example.test/lateen:v1", i.agents().Image)
		done := make(chan error, 1)
		go func() { done <- i.run(true) }()
		synctest.Wait()
		object.Object["status"] = map[string]any{"phase": "Completed"}
		_, err = downloads.Update(t.Context(), object, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.NoError(t, <-done)
		require.NotEqual(t, "example.test/lateen:v1", i.agents().Image)
		require.Contains(t, i.warnings.String(), "Warning: 1 datadownloads InProgress: if its mover ends while the agent of its node is replaced")
	})
}

func TestBothDirectionsReplaceAgentsOfStrategyOnDeleteAndWaitForTheNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInstallation(t)
		agents := velerosAgents(t, api.DaemonSetName, func(*corev1.PodSpec) {})
		agents.SetAnnotations(map[string]string{appsv1.DeprecatedTemplateGeneration: "2"})
		agents.Object["status"] = map[string]any{"desiredNumberScheduled": int64(1)}
		agents.Object["spec"].(map[string]any)["updateStrategy"] = map[string]any{"type": "OnDelete"}
		require.NoError(t, i.dynamic.Tracker().Update(cli.DaemonSets(), agents, "velero"))
		require.NoError(t, i.dynamic.Tracker().Delete(cli.DaemonSets(), "velero", api.WindowsDaemonSetName))
		for _, undo := range []bool{false, true} {
			for _, generation := range []string{"1", "2"} {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: generation, Namespace: "velero", Labels: map[string]string{"pod-template-generation": generation}}}
				pod.OwnerReferences = []metav1.OwnerReference{{UID: agents.GetUID(), Controller: new(true)}}
				pod.Spec.ServiceAccountName = deploy.ServiceAccountName
				require.Condition(t, func() bool { err := i.kube.Tracker().Add(pod); return err == nil || apierrors.IsAlreadyExists(err) })
			}
			err := i.run(undo)
			require.ErrorContains(t, err, "wait for daemonsets node-agent: context deadline exceeded", undo)
			require.Equal(t, undo, !strings.Contains(err.Error(), "to restore Velero's agents: lateen adopt --undo"))
			require.NotContains(t, i.state(), "Pod 1")
			require.Contains(t, i.state(), "Pod 2")
		}
	})
}

func TestAdoptionsWarnOfTransfersWithoutAMoverAndOfRestic(t *testing.T) {
	i := newInstallation(t)
	create := func(kind schema.GroupVersionKind, fields map[string]any) {
		object := &unstructured.Unstructured{Object: fields}
		object.SetGroupVersionKind(kind)
		object.SetName("held")
		resource, _ := meta.UnsafeGuessKindToResource(kind)
		_, err := i.dynamic.Resource(resource).Namespace("velero").Create(t.Context(), object, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	create(api.PodVolumeBackup().GVK, map[string]any{})
	create(api.DataUpload().GVK, map[string]any{"status": map[string]any{"phase": "Accepted"}})
	create(velerov1.SchemeGroupVersion.WithKind("BackupRepository"), map[string]any{"spec": map[string]any{"repositoryType": "restic"}})
	a := adoption{Client: &cli.Client{Dynamic: i.dynamic, Namespace: "velero"}, warnings: &i.warnings}
	for undo, means := range map[bool]string{false: acceptedAtAdoption, true: acceptedAtUndo} {
		a.undo = undo
		a.warnOfTransfers(t.Context())
		require.Contains(t, i.warnings.String(), "Warning: transfers without a mover: 1 podvolumebackups New, 1 datauploads Accepted: "+newMeans+"; "+means)
	}
	a.warnOfRestic(t.Context())
	require.Contains(t, i.warnings.String(), "Warning: BackupRepository held has type restic")
}

func TestTheAgentsFollowAnUpgradeOfVelerosServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInstallation(t)
		server := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "backups", Namespace: "velero"}}
		server.Spec.Template.Spec.Containers = []corev1.Container{{Command: []string{"/velero"}, Args: []string{"server"}}}
		require.NoError(t, i.kube.Tracker().Add(server))
		upgrade := func(image string) {
			server.Spec.Template.Spec.Containers[0].Image = image
			require.NoError(t, i.kube.Tracker().Update(appsv1.SchemeGroupVersion.WithResource("deployments"), server, "velero"))
		}
		old := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"versions": []any{map[string]any{"name": "v1", "served": true}}}}}
		old.SetGroupVersionKind(schema.GroupVersionKind{Group: cli.Definitions().Group, Version: "v1", Kind: "CustomResourceDefinition"})
		old.SetName("podvolumebackups.velero.io")
		require.NoError(t, i.dynamic.Tracker().Create(cli.Definitions(), old, ""))
		require.ErrorContains(t, i.run(false), "definitions are older than those of Velero 1.17: podvolumebackups.velero.io: upgrade Velero first")
		require.Zero(t, i.writes)
		require.NoError(t, i.dynamic.Tracker().Delete(cli.Definitions(), "", "podvolumebackups.velero.io"))
		for _, image := range []string{"velero/velero:v1.17.0-rc.1", "velero/velero:v1.99.4"} {
			upgrade(image)
			require.NoError(t, i.run(false))
			require.Contains(t, i.agents().Args, "--mover-image="+image, "of a server whose Deployment the agents may not read")
		}
		require.Equal(t, 1, strings.Count(i.warnings.String(), "Velero v1.99.4 is newer than 1.18"))
		require.NoError(t, i.run(true))
		require.Equal(t, "velero/velero:v1.99.4", i.agents().Image)
		require.NoError(t, i.run(false))
		upgrade("mirror.example/velero:v1.99.5")
		require.NoError(t, i.run(true))
		require.Equal(t, "velero/velero:v1.99.4", i.agents().Image, "the original has another registry")
	})
}

// agents returns the container of the agents on Linux nodes.
func (i *installation) agents() corev1.Container {
	found, err := i.dynamic.Resource(cli.DaemonSets()).Namespace("velero").Get(i.Context(), api.DaemonSetName, metav1.GetOptions{})
	require.NoError(i, err)
	template, err := readTemplate(found)
	require.NoError(i, err)
	return template.Spec.Containers[0]
}

// requireOthersDone: a write that fails stops nothing that does not need it.
func (i *installation) requireOthersDone(undo, released bool) {
	state := i.state()
	rights := slices.DeleteFunc(slices.Collect(maps.Keys(state)), func(name string) bool {
		return strings.HasPrefix(name, "DaemonSet ") || strings.HasPrefix(name, "Pod ")
	})
	switch updated := i.failed.Matches("update", "daemonsets"); {
	case undo && updated && !released:
		require.NotEmpty(i, rights, "Lateen's agents lost their rights")
	case undo && !updated:
		require.Len(i, rights, 1)
	}
	lateens := 0
	for _, name := range []string{api.DaemonSetName, api.WindowsDaemonSetName} {
		template, err := readTemplate(&unstructured.Unstructured{Object: state["DaemonSet "+name].(map[string]any)})
		require.NoError(i, err)
		if !strings.Contains(template.Spec.Containers[0].Image, "lateen") {
			continue
		}
		lateens++ // Velero's agents would give its image to new movers. Only a refused deletion leaves one.
		if deletion, ok := i.failed.(clienttesting.DeleteAction); !ok || deletion.GetName() != name {
			require.NotContains(i, state, "Pod "+name)
		}
	}
	if i.failed.Matches("update", "daemonsets") && !released {
		require.Equal(i, 1, lateens)
	}
}

// velerosAgents returns a DaemonSet of Velero's agents. The template has a field that this program does not know.
func velerosAgents(t *testing.T, name string, change func(*corev1.PodSpec)) *unstructured.Unstructured {
	t.Helper()
	pod := corev1.PodSpec{ServiceAccountName: "velero", Containers: []corev1.Container{{
		Name: "node-agent", Image: "velero/velero:v1.18.3", Command: []string{"/velero"}, Args: []string{"node-agent", "server", "--log-level", "info", "--mover-retries=4"},
	}}}
	change(&pod)
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.PodTemplateSpec{Spec: pod})
	require.NoError(t, err)
	fields["spec"].(map[string]any)["newer"] = "field"
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": map[string]any{"name": name, "namespace": "velero", "uid": name},
		"spec": map[string]any{"template": fields},
	}}
}

func TestAgentsThatCannotBeAdoptedAreLeftAsTheyAre(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.PodSpec)
		says   string
	}{
		"an argument that Lateen does not know": {
			change: func(pod *corev1.PodSpec) { pod.Containers[0].Args = append(pod.Containers[0].Args, "--no-such-flag=1") },
			says:   "unknown flag: --no-such-flag",
		},
		"an argument with which no agent starts": {
			change: func(pod *corev1.PodSpec) { pod.Containers[0].Args = append(pod.Containers[0].Args, "--workers=0") },
			says:   "--workers is 0: use 1 or more",
		},
		"another program": {
			change: func(pod *corev1.PodSpec) { pod.Containers[0].Args = []string{"server"} },
			says:   "does not run velero node-agent server",
		},
		"Lateen's agents": {
			change: func(pod *corev1.PodSpec) { pod.Containers[0].Args = []string{"node-agent"} },
			says:   "has no annotation lateen.dev/adopted-from",
		},
		"another container": {
			change: func(pod *corev1.PodSpec) { pod.Containers = append(pod.Containers, corev1.Container{Name: "beside"}) },
			says:   "its pods have 2 containers",
		},
	} {
		agents := velerosAgents(t, api.DaemonSetName, test.change)
		before := agents.Object["spec"]
		a := adoption{Client: &cli.Client{Kube: fake.NewClientset(), Namespace: "velero"}, options: options{image: "example.test/lateen:v1"}}
		require.ErrorContains(t, a.adopt(t.Context(), agents), test.says, name)
		require.Equal(t, before, agents.Object["spec"], name)
	}
}

func TestProbesUseThePortOfTheArguments(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		port int // 0: no probe
	}{
		"the default":          {port: 8085},
		"another port":         {args: []string{"--metrics-address=:9090"}, port: 9090},
		"in a word of its own": {args: []string{"--metrics-address", "[::]:9090"}, port: 9090},
		"the last of two":      {args: []string{"--metrics-address=:9090", "--metrics-address=0.0.0.0:9091"}, port: 9091},
		"loopback":             {args: []string{"--metrics-address=127.0.0.1:8085"}},
		"loopback by name":     {args: []string{"--metrics-address=localhost:8085"}},
	} {
		t.Run(name, func(t *testing.T) {
			agents := velerosAgents(t, api.DaemonSetName, func(pod *corev1.PodSpec) {
				pod.Containers[0].Args = append(pod.Containers[0].Args, test.args...)
				pod.Containers[0].Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: deploy.MetricsPort}}
			})
			a := adoption{Client: &cli.Client{Kube: fake.NewClientset(), Namespace: "velero"}, options: options{image: "example.test/lateen:v1"}}
			require.NoError(t, a.adopt(t.Context(), agents))
			template, err := readTemplate(agents)
			require.NoError(t, err)
			port := 0
			if probe := template.Spec.Containers[0].LivenessProbe; probe != nil { // package deploy adds all probes or none
				port = probe.HTTPGet.Port.IntValue()
			}
			require.Equal(t, test.port, port)
		})
	}
}
