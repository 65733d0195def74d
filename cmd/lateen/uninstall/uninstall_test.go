package uninstall

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/exposer/api"
)

func TestOnlyWhatBlocksADeletionIsNamed(t *testing.T) {
	condition := func(kind, status, message string) any {
		return map[string]any{"type": kind, "status": status, "message": message}
	}
	for name, test := range map[string]struct {
		kind       string
		finalizers []string
		conditions []any
		want       string
	}{
		"a finalizer": {"Secret", []string{"example.com/kept", "example.com/other"}, nil,
			"finalizer example.com/kept; finalizer example.com/other; uninstall again once this is resolved"},
		"not the finalizer of the garbage collector, nor a condition of a workload": {"Deployment", []string{"foregroundDeletion"},
			[]any{condition("Available", "True", "Deployment has minimum availability.")},
			"Kubernetes still deletes or orphans its dependents; uninstall again once this is resolved"},
		"content of a namespace": {"Namespace", nil, []any{
			condition(string(corev1.NamespaceDeletionContentFailure), "False", "All content successfully deleted, may be waiting on finalization"),
			condition(string(corev1.NamespaceFinalizersRemaining), "True", "Some content in the namespace has finalizers remaining: example.com/kept in 1 resource instances"),
			condition("example.com/Audited", "True", "audited"),
		}, "Some content in the namespace has finalizers remaining: example.com/kept in 1 resource instances; uninstall again once this is resolved"},
		"nothing": {"ConfigMap", nil, nil, "no finalizer or condition shows what blocks it; uninstall again"},
	} {
		object := &unstructured.Unstructured{Object: map[string]any{"kind": test.kind, "status": map[string]any{"conditions": test.conditions}}}
		object.SetFinalizers(test.finalizers)
		require.Equal(t, test.want, blockers(object), name)
	}
}

// TestObjectsThatAreDeletedDuringTheWaitAreNotNamed ends the wait for two Restores after one of them is deleted.
func TestObjectsThatAreDeletedDuringTheWaitAreNotNamed(t *testing.T) {
	restores := schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: "restores"}
	restore := func(name string) *unstructured.Unstructured {
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "velero.io/v1", "kind": "Restore", "metadata": map[string]any{"name": name, "namespace": "velero"},
		}}
		object.SetFinalizers([]string{"restores.velero.io/external-resources-finalizer"})
		return object
	}
	server := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": api.VeleroDeployment, "namespace": "velero"},
		"status": map[string]any{"availableReplicas": int64(1)},
	}}
	kinds := map[schema.GroupVersionResource]string{restores: "RestoreList"}
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, restore("finished"), restore("held"), server)
	client.PrependReactor("delete-collection", "restores", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, nil })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client.PrependWatchReactor("restores", func(clienttesting.Action) (bool, watch.Interface, error) {
		cancel()
		return true, watch.NewFake(), client.Tracker().Delete(restores, "velero", "finished")
	})
	err := (&removal{&cli.Client{Dynamic: client, Namespace: "velero", Out: t.Output()}}).removeFinalized(ctx, allFinalized())
	require.ErrorContains(t, err, "remove 1 restores of namespace velero: their finalizers were not removed: held (")
	require.ErrorIs(t, err, context.Canceled)
}

func TestMoversThatRunAreCountedBeforeTheConfirmation(t *testing.T) {
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	for count, want := range []string{"", "Running movers: 1. ", "Running movers: 2. "} {
		client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{pods: "PodList"})
		for i := range count {
			mover := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod"}}
			mover.SetNamespace("velero")
			mover.SetName(strings.Repeat("m", i+1))
			mover.SetLabels(map[string]string{api.LabelMover: "true"})
			require.NoError(t, client.Tracker().Create(pods, mover, "velero"))
		}
		var out strings.Builder
		require.NoError(t, (&removal{&cli.Client{Dynamic: client, Namespace: "velero", Out: &out}}).warnOfMovers(t.Context()))
		require.True(t, strings.HasPrefix(out.String(), want))
		require.Equal(t, count > 0, out.Len() > 0)
	}
}

func TestDefinitionsStayWhileAnotherVeleroNeedsThem(t *testing.T) {
	definition := func(plural string) unstructured.Unstructured {
		return unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": plural + ".velero.io"},
			"spec": map[string]any{"group": "velero.io", "names": map[string]any{"plural": plural}, "versions": []any{map[string]any{"name": "v1"}}},
		}}
	}
	backup := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "velero.io/v1", "kind": "Backup", "metadata": map[string]any{"name": "nightly", "namespace": "other"},
	}}
	server := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "velero", Namespace: "other"}}
	server.Spec.Template.Spec.Containers = []corev1.Container{{Command: []string{"/velero"}, Args: []string{"server"}}}
	for want, objects := range map[string]struct{ custom, workloads []runtime.Object }{
		"backups other/nightly still exists":           {custom: []runtime.Object{backup}},
		"Deployment other/velero runs Velero's server": {workloads: []runtime.Object{server}},
		"": {workloads: []runtime.Object{&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "other"}}}},
	} {
		lists := map[schema.GroupVersionResource]string{}
		for plural, kind := range map[string]string{"backups": "BackupList", "downloadrequests": "DownloadRequestList"} {
			lists[schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: plural}] = kind
		}
		client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects.custom...)
		r := &removal{&cli.Client{Dynamic: client, Kube: fake.NewClientset(objects.workloads...), Namespace: "velero", Out: t.Output()}}
		user, err := r.definitionsUser(t.Context(), []unstructured.Unstructured{definition("downloadrequests"), definition("backups")})
		require.NoError(t, err)
		require.Equal(t, want, user)
	}
}
