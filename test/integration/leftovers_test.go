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
func (s *env) leftovers() []leftover {
	const ours = api.LabelMover + "=true"
	return []leftover{
		{resource: corev1.SchemeGroupVersion.WithResource("pods"), namespace: s.Namespace, labels: ours},
		{resource: corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), namespace: s.Namespace},
		{resource: corev1.SchemeGroupVersion.WithResource("persistentvolumes"), belongs: s.isOf("claimRef", s.Namespace)},
		{resource: snapshotv1.SchemeGroupVersion.WithResource("volumesnapshots"), namespace: s.Namespace},
		{resource: snapshotv1.SchemeGroupVersion.WithResource("volumesnapshotcontents"), belongs: s.isOf("volumeSnapshotRef", s.Namespace)},
	}
}

// isOf reports whether an object of the whole cluster is bound to one in a namespace.
func (s *env) isOf(reference, namespace string) func(*unstructured.Unstructured) bool {
	return func(bound *unstructured.Unstructured) bool {
		to, _, err := unstructured.NestedString(bound.Object, "spec", reference, "namespace")
		require.NoError(s, err)
		return to == namespace
	}
}

// nothingLeft waits until nothing is left of what agents have made.
func (s *env) nothingLeft() {
	client, err := dynamic.NewForConfig(s.Plane.Admin())
	require.NoError(s, err)
	for _, what := range s.leftovers() {
		objects := client.Resource(what.resource).Namespace(what.namespace)
		require.NoError(s, testenv.WaitGone(s.soon(), objects, metav1.ListOptions{LabelSelector: what.labels}, func(object runtime.Object) bool {
			found, ok := object.(*unstructured.Unstructured)
			return ok && (what.belongs == nil || what.belongs(found))
		}), "%s that are left", what.resource.Resource)
	}
}
