package integration

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// What Velero's agent has made for an upload is what Lateen makes, but for Lateen's marks: the pod waits for a node, as
// no agent of either kind can see it to be running.
func TestAnUploadThatVelerosAgentHasPreparedIsTakenOver(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{})
	first := v.start()
	source := v.claim("data")
	snapshot, handle := v.snapshot(source)
	v.cordon(v.node, true)
	name := v.upload(source, snapshot.Name)
	mover := v.moverIs(name, func(*corev1.Pod) bool { return true })
	first.stop()
	v.unmark(name)

	v.start()
	ours := v.moverIs(name, func(pod *corev1.Pod) bool { return pod.Labels[api.LabelMover] == "true" })
	require.Equal(t, mover.UID, ours.UID)
	v.cordon(v.node, false)
	v.uploaded(name, handle, testenv.Completed)
	v.noSnapshots()
	v.nothingLeft()
	require.Equal(t, 1, v.moversMade(name))
}

// unmark takes Lateen's labels and annotations from all that was made for an upload.
func (s *env) unmark(name string) {
	client, err := dynamic.NewForConfig(s.Plane.Admin())
	require.NoError(s, err)
	snapshots := schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"}
	for _, created := range []dynamic.ResourceInterface{
		client.Resource(snapshots).Namespace(s.Namespace),
		client.Resource(snapshots.GroupVersion().WithResource("volumesnapshotcontents")),
		client.Resource(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")).Namespace(s.Namespace),
		client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(s.Namespace),
	} {
		object, err := created.Get(s.soon(), name, metav1.GetOptions{})
		require.NoError(s, err)
		labels, annotations := marks(object.GetLabels()), marks(object.GetAnnotations())
		require.NotEmpty(s, labels, "of %s", object.GetKind())
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": annotations}})
		require.NoError(s, err)
		_, err = created.Patch(s.soon(), name, types.MergePatchType, patch, metav1.PatchOptions{})
		require.NoError(s, err)
	}
}

// marks are the keys that are Lateen's, each with nothing as its value.
func marks(all map[string]string) map[string]any {
	own := map[string]any{}
	for key := range all {
		if strings.HasPrefix(key, "lateen.dev/") {
			own[key] = nil
		}
	}
	return own
}
