package integration

import (
	"maps"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/lateen-project/lateen/api"
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

// isOf tells whether an object of the whole cluster is bound to one in a namespace.
func (s *env) isOf(reference, namespace string) func(*unstructured.Unstructured) bool {
	return func(bound *unstructured.Unstructured) bool {
		to, _, err := unstructured.NestedString(bound.Object, "spec", reference, "namespace")
		require.NoError(s, err)
		return to == namespace
	}
}

// nothingLeft waits until nothing is left of what agents have made.
func (s *env) nothingLeft() {
	s.Helper()
	client, err := dynamic.NewForConfig(plane.Admin())
	require.NoError(s, err)
	for _, what := range s.leftovers() {
		s.noneLeft(client.Resource(what.resource).Namespace(what.namespace), what)
	}
}

func (s *env) noneLeft(client dynamic.ResourceInterface, what leftover) {
	s.Helper()
	ctx := s.soon()
	options := metav1.ListOptions{LabelSelector: what.labels}
	list, err := client.List(ctx, options)
	require.NoError(s, err)
	left := map[string]bool{}
	for i := range list.Items {
		if what.belongs == nil || what.belongs(&list.Items[i]) {
			left[list.Items[i].GetName()] = true
		}
	}
	if len(left) == 0 {
		return
	}
	options.ResourceVersion = list.GetResourceVersion()
	changes, err := client.Watch(ctx, options)
	require.NoError(s, err)
	defer changes.Stop()
	for change := range changes.ResultChan() {
		if object, ok := change.Object.(*unstructured.Unstructured); ok && change.Type == watch.Deleted {
			delete(left, object.GetName())
		}
		if len(left) == 0 {
			return
		}
	}
	require.Empty(s, slices.Sorted(maps.Keys(left)), "%s that are left", what.resource.Resource)
}
