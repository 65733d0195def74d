package exposer

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/build"
)

func request() build.Request {
	return build.Request{
		Name: "b1", Namespace: "velero", UID: "b1-uid", GVK: schema.GroupVersionKind{Group: "velero.io", Version: "v1", Kind: "PodVolumeBackup"},
		PodLabel: "velero.io/pod-volume-backup", Acceptor: "n1", Node: "n1", HostPath: "/pods/x",
	}
}

// refuse answers the first create of a pod with an error.
func refuse(client *fake.Clientset, err error) {
	refused := false
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if refused {
			return false, nil, nil
		}
		refused = true
		return true, nil, err
	})
}

func forbidden(why string) error {
	return apierrors.NewForbidden(corev1.Resource("pods"), "b1", errors.New(why))
}

func TestAPodThatIsRefused(t *testing.T) {
	low := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "low"}, Value: 10}
	tests := map[string]struct {
		class    string
		existing []runtime.Object
		refusal  error
		made     bool // in the end there is a pod
		rejected int
		hopeless bool
	}{
		"for a class that is gone is made without it": {class: "low", refusal: forbidden("no PriorityClass with name low was found"), made: true, rejected: 1},
		"for a quota while the class is there waits":  {class: "low", existing: []runtime.Object{low}, refusal: forbidden("exceeded quota")},
		"for a quota without a class waits":           {refusal: forbidden("exceeded quota")},
		"as invalid is never made":                    {refusal: apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "b1", nil), hopeless: true},
		"by an overloaded server waits":               {class: "low", refusal: apierrors.NewInternalError(errors.New("etcd"))},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(test.existing...)
			refuse(client, test.refusal)
			rejected := 0
			e := &Exposer{Client: client, Settings: build.Settings{PriorityClass: test.class}, Rejected: func(context.Context, *corev1.Pod, string) { rejected++ }}
			err := e.Ensure(t.Context(), request())
			pod, getErr := client.CoreV1().Pods("velero").Get(t.Context(), "b1", metav1.GetOptions{})
			require.Equal(t, test.rejected, rejected)
			hopeless := (*HopelessError)(nil)
			require.Equal(t, test.hopeless, errors.As(err, &hopeless))
			if !test.made {
				require.Error(t, err)
				require.True(t, apierrors.IsNotFound(getErr))
				return
			}
			require.NoError(t, err)
			require.NoError(t, getErr)
			require.Empty(t, pod.Spec.PriorityClassName)
		})
	}
}

func TestAPodThatExists(t *testing.T) {
	ours := build.MoverPod(request(), build.Template{}, build.Settings{})
	veleros := ours.DeepCopy()
	veleros.Labels = map[string]string{"velero.io/pod-volume-backup": "b1"}
	foreign := ours.DeepCopy()
	foreign.OwnerReferences[0].UID = "of-an-older-one"
	tests := map[string]struct {
		pod    *corev1.Pod
		taken  bool
		writes int
	}{
		"and is ours is taken as it is":                               {pod: ours, taken: true},
		"and was made by Velero's agent for the same one is labelled": {pod: veleros, taken: true, writes: 1},
		"and belongs to another one is not touched":                   {pod: foreign},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(test.pod)
			err := (&Exposer{Client: client}).Ensure(t.Context(), request())
			require.Equal(t, test.taken, err == nil, "%v", err)
			writes := 0
			for _, action := range client.Actions() {
				if action.GetVerb() != "get" && action.GetVerb() != "create" {
					writes++
				}
			}
			require.Equal(t, test.writes, writes)
			pod, err := client.CoreV1().Pods("velero").Get(t.Context(), "b1", metav1.GetOptions{})
			require.NoError(t, err)
			if test.taken {
				require.Equal(t, "n1", pod.Labels[build.LabelAcceptor])
			}
		})
	}
}

func TestRemoveNamesTheUIDAndDoesNotMindAPodThatIsGone(t *testing.T) {
	client := fake.NewClientset()
	pod := build.MoverPod(request(), build.Template{}, build.Settings{})
	pod.UID = "mover-uid"
	require.NoError(t, (&Exposer{Client: client}).Remove(t.Context(), pod))
	deleted, ok := client.Actions()[0].(clienttesting.DeleteActionImpl)
	require.True(t, ok)
	require.EqualValues(t, "mover-uid", *deleted.DeleteOptions.Preconditions.UID)
}
