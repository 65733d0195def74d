package exposer

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

func movement() objects.MoverSpec {
	return objects.MoverSpec{
		Name: "b1", Namespace: "velero", UID: "b1-uid", GVK: schema.GroupVersionKind{Group: "velero.io", Version: "v1", Kind: "PodVolumeBackup"},
		PodLabel: velerov1.PVBLabel, ExposingNode: "n1",
		Source: objects.Source{PodVolume: &objects.PodVolumeSource{Pod: corev1.ObjectReference{Namespace: "app", Name: "db"}, Volume: "data"}},
	}
}

// exposed returns an exposer with a cached source pod.
func exposed(client *fake.Clientset, settings objects.Settings) *Exposer {
	source := podWith(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	source.Spec.NodeName = "n1"
	e := &Exposer{
		Client: client, Templates: map[corev1.OSName]objects.Template{corev1.Linux: {}},
		Paths:  HostPaths{Client: client, PodsDir: "/pods"},
		Source: func(string) *corev1.Pod { return source },
	}
	e.SetSettings(settings)
	return e
}

// mover is the mover pod of movement.
func mover() *corev1.Pod {
	facts := objects.VolumeInfo{OS: corev1.Linux, Node: "n1", HostPath: "/pods/x"}
	return objects.PlanOf(movement(), facts, objects.Template{}, objects.Settings{}).Pod
}

func forbidden(why string) error {
	return apierrors.NewForbidden(corev1.Resource("pods"), "b1", errors.New(why))
}

// TestPriorityClass in cmd/lateen/agent has the refusals for the sake of a class.
func TestARefusedPod(t *testing.T) {
	for name, test := range map[string]struct {
		class    string
		refusal  error
		terminal bool
	}{
		"for a quota waits with its class":  {class: "low", refusal: forbidden("exceeded quota")},
		"for a quota without a class waits": {refusal: forbidden("exceeded quota")},
		"for an invalid field is terminal": {refusal: apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "b1", field.ErrorList{
			field.Required(field.NewPath("spec", "containers"), ""),
		}), terminal: true},
		"as invalid by a policy waits":  {refusal: apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "b1", nil)},
		"by an overloaded server waits": {class: "low", refusal: apierrors.NewInternalError(errors.New("etcd"))},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.refusal })
			e := exposed(client, objects.Settings{PriorityClass: test.class})
			_, err := e.Ensure(t.Context(), movement())
			require.Error(t, err)
			terminal := (*TerminalError)(nil)
			require.Equal(t, test.terminal, errors.As(err, &terminal))
			require.Equal(t, []string{"create pods"}, requests(client), "it is not created without its class")
		})
	}
}

func TestAnExistingPod(t *testing.T) {
	ours := mover()
	veleros := ours.DeepCopy()
	veleros.Labels = map[string]string{velerov1.PVBLabel: "b1"}
	foreign := ours.DeepCopy()
	foreign.OwnerReferences[0].UID = "of-an-older-one"
	exchanged := veleros.DeepCopy()
	exchanged.Spec.Containers = []corev1.Container{{Image: "lateen:v1"}}
	exchanged.Status.Phase = corev1.PodPending
	tests := map[string]struct {
		pod     *corev1.Pod
		taken   bool
		deleted bool
		writes  []string
	}{
		"of Velero's agent with the image of its successor is deleted": {pod: exchanged, deleted: true, writes: []string{"delete pods"}},
		"with this owner is used unchanged":                            {pod: ours, taken: true},
		"of Velero's agent for the same transfer is labelled":          {pod: veleros, taken: true, writes: []string{"patch pods"}},
		"of another owner is not changed":                              {pod: foreign},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(test.pod)
			_, err := exposed(client, objects.Settings{}).Ensure(t.Context(), movement())
			require.Equal(t, test.taken, err == nil, "%v", err)
			require.Equal(t, append([]string{"create pods", "get pods"}, test.writes...), requests(client))
			pod, err := client.CoreV1().Pods("velero").Get(t.Context(), "b1", metav1.GetOptions{})
			require.Equal(t, test.deleted, apierrors.IsNotFound(err), "%v", err)
			if test.taken {
				require.Equal(t, "n1", pod.Labels[api.LabelExposer])
			}
		})
	}
}

func TestDeleteHasAUIDPreconditionAndIgnoresNotFound(t *testing.T) {
	client := fake.NewClientset()
	pod := mover()
	pod.UID = "mover-uid"
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "claim-uid"}}
	waits, err := exposed(client, objects.Settings{}).CleanUp(t.Context(), movement(), Existing{Pod: pod, Claims: []*corev1.PersistentVolumeClaim{claim}})
	require.NoError(t, err)
	require.Empty(t, waits)
	var deleted []string
	for _, action := range client.Actions() {
		call, ok := action.(clienttesting.DeleteActionImpl)
		require.True(t, ok)
		deleted = append(deleted, string(*call.DeleteOptions.Preconditions.UID))
	}
	require.Equal(t, []string{"mover-uid", "claim-uid"}, deleted)
}

// A second request would be one too many when two agents clean up the same transfer.
func TestADeletingMoverIsDeletedAgainByForceAlone(t *testing.T) {
	for force, requests := range map[bool]int{false: 0, true: 1} {
		deleting := mover()
		deleting.DeletionTimestamp, deleting.Finalizers = new(metav1.Now()), []string{"kubelet"}
		client := fake.NewClientset(deleting)
		require.NoError(t, exposed(client, objects.Settings{}).DeleteMover(t.Context(), Existing{Pod: deleting, Force: force}))
		require.Len(t, client.Actions(), requests, "force: %v", force)
	}
}
