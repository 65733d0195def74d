package install

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/testenv"
)

// letGo is the remedy that the program names.
const letGo = `{"metadata":{"finalizers":null}}`

// velero18 are the versions in which Velero 1.18 has its resources.
func velero18(resource string) schema.GroupVersionResource {
	version := "v1"
	if resource == "datauploads" {
		version = "v2alpha1"
	}
	return schema.GroupVersionResource{Group: "velero.io", Version: version, Resource: resource}
}

// holds makes a custom resource of Velero that has a finalizer.
func (e *env) holds(resource, kind, finalizer string) (release func()) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": velero18(resource).GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"name": "held", "namespace": e.namespace, "finalizers": []any{finalizer}},
		"spec":     required(kind),
	}}
	require.NoError(e, testenv.Apply(soon(e.T), plane.Admin(), object))
	return func() {
		e.Helper()
		_, err := e.dynamic.Resource(velero18(resource)).Namespace(e.namespace).Patch(soon(e.T), "held", types.MergePatchType, []byte(letGo), metav1.PatchOptions{})
		require.NoError(e, err)
	}
}

// required is what a definition asks of the specification.
func required(kind string) map[string]any {
	switch kind {
	case "Restore":
		return map[string]any{}
	case "DataUpload":
		return map[string]any{"backupStorageLocation": "default", "operationTimeout": "1h", "snapshotType": "CSI", "sourceNamespace": "app", "sourcePVC": "data"}
	}
	return map[string]any{
		"backupStorageLocation": "default", "node": "nowhere", "pod": map[string]any{}, "repoIdentifier": "", "volume": "data",
	}
}

func TestUninstallNamesTheFinalizerItsControllerAndTheRemedy(t *testing.T) {
	s := newEnv(t)
	_, warnings := s.install("--server-priority-class-name=no-such-server", "--node-agent-priority-class-name=no-such-agent") // so that none has a pod
	require.Contains(t, warnings, "--server-priority-class-name: PriorityClass no-such-server does not exist")
	require.Contains(t, warnings, "--node-agent-priority-class-name: PriorityClass no-such-agent does not exist")
	require.Equal(t, "no-such-server", s.server().Spec.Template.Spec.PriorityClassName)
	require.Equal(t, "no-such-agent", s.agents().Spec.Template.Spec.PriorityClassName)
	for _, each := range []struct{ resource, kind, finalizer, workload string }{
		{"restores", "Restore", "restores.velero.io/external-resources-finalizer", "deployments velero"},
		{"podvolumebackups", "PodVolumeBackup", api.FinalizerPodVolume, "daemonsets node-agent"},
	} {
		release := s.holds(each.resource, each.kind, each.finalizer)
		_, reported := s.fails("", "uninstall", "--force")
		require.Contains(t, reported, fmt.Sprintf("remove 1 %s of namespace %s: no pod of %s is running to remove their finalizers: held (%s)",
			each.resource, s.namespace, each.workload, each.finalizer))
		require.Contains(t, reported, fmt.Sprintf("kubectl -n %s patch %s NAME --type=merge -p '%s'", s.namespace, each.resource, letGo))
		s.server() // what might let it go stays until it has
		release()
	}
	out, _ := s.succeeds("", "uninstall", "--force")
	require.Contains(t, out, "DaemonSet node-agent removed\n")
	_, err := s.kube.CoreV1().Namespaces().Get(soon(t), s.namespace, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

// uninstallsInTime is for an environment whose server has a pod that is ready and lets nothing go: it is waited for, but not for
// ever.
func (e *env) uninstallsInTime() {
	release := e.holds("restores", "Restore", "restores.velero.io/external-resources-finalizer")
	out, reported := e.fails("", "uninstall", "--force", "--timeout=2s")
	require.Contains(e, out, "1 restores wait for deployments velero to remove their finalizers\n")
	require.Contains(e, reported, "their finalizers were not removed: held (restores.velero.io/external-resources-finalizer)")
	release()
}

func TestANamespaceThatSomethingElseKeepsIsNotWaitedForForEver(t *testing.T) {
	s := newEnv(t)
	s.install()
	maps := s.kube.CoreV1().ConfigMaps(s.namespace)
	_, err := maps.Create(soon(t), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/kept"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	reported := ""
	for timeout := 4 * time.Second; !strings.Contains(reported, "example.com/kept in 1 resource instances"); timeout *= 2 {
		require.Less(t, timeout, testenv.Patience, "with half of it: %s", reported) // what comes before the namespace takes longer on a slow machine
		_, reported = s.fails("", "uninstall", "--force", "--timeout="+timeout.String())
	}
	require.Contains(t, reported, "remove Namespace "+s.namespace)
	_, err = maps.Patch(soon(t), "held", types.MergePatchType, []byte(letGo), metav1.PatchOptions{})
	require.NoError(t, err)
}

func TestWhatStaysWithItsNamespaceIsReported(t *testing.T) {
	s := newEnv(t)
	s.createNamespace(s.namespace)
	s.install()
	release := s.holds("restores", "Restore", "restores.velero.io/external-resources-finalizer")
	out, _ := s.succeeds("", "uninstall", "--force")
	require.Contains(t, out, "1 restores are kept with the namespace; only deployments velero can remove their finalizers\n")
	release()
}
