package integration

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/testenv"
)

// leftover is a kind of object that a transfer may leave.
type leftover struct {
	resource  schema.GroupVersionResource
	namespace string
	labels    string
	belongs   func(*unstructured.Unstructured) bool // to this environment; nil: all do
}

// leftovers are what agents make, all of it.
func (e *env) leftovers() []leftover {
	const ours = api.LabelMover + "=true"
	return []leftover{
		{resource: corev1.SchemeGroupVersion.WithResource("pods"), namespace: e.Namespace, labels: ours},
		{resource: corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), namespace: e.Namespace},
		{resource: corev1.SchemeGroupVersion.WithResource("persistentvolumes"), belongs: e.isOf("claimRef", e.Namespace)},
		{resource: snapshotv1.SchemeGroupVersion.WithResource("volumesnapshots"), namespace: e.Namespace},
		{resource: snapshotv1.SchemeGroupVersion.WithResource("volumesnapshotcontents"), belongs: e.isOf("volumeSnapshotRef", e.Namespace)},
	}
}

// isOf reports whether an object of the whole cluster is bound to one in a namespace.
func (e *env) isOf(reference, namespace string) func(*unstructured.Unstructured) bool {
	return func(bound *unstructured.Unstructured) bool {
		to, _, err := unstructured.NestedString(bound.Object, "spec", reference, "namespace")
		require.NoError(e, err)
		return to == namespace
	}
}

// nothingLeft waits until nothing is left of what agents have made.
func (e *env) nothingLeft() {
	client, err := dynamic.NewForConfig(e.Plane.Admin())
	require.NoError(e, err)
	for _, what := range e.leftovers() {
		objects := client.Resource(what.resource).Namespace(what.namespace)
		require.NoError(e, testenv.WaitGone(e.soon(), objects, metav1.ListOptions{LabelSelector: what.labels}, func(object runtime.Object) bool {
			found, ok := object.(*unstructured.Unstructured)
			return ok && (what.belongs == nil || what.belongs(found))
		}), "%s that are left", what.resource.Resource)
	}
}
