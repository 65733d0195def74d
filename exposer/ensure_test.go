package exposer

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// cached creates a cache volume for every restore.
func cached() objects.Settings {
	return objects.Settings{Cache: &objects.Cache{StorageClass: "cache", Limit: 1 << 30}}
}

// restore is the mover spec of a restore to a pod volume.
func restore() objects.MoverSpec {
	move := movement()
	move.Restores = true
	return move
}

// download is the mover spec of a restore to an unbound claim.
func download() objects.MoverSpec {
	move := restore()
	move.OS, move.Source = corev1.Linux, objects.Source{Target: &objects.TargetSource{Namespace: "app", Claim: "claim"}}
	return move
}

func freeClaim() *corev1.PersistentVolumeClaim {
	return sourceClaim(func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.VolumeName, claim.Spec.StorageClassName = "", new("fast")
	})
}

// requests are the requests to the API server, in order.
func requests(client *fake.Clientset) []string {
	var all []string
	for _, action := range client.Actions() {
		all = append(all, action.GetVerb()+" "+action.GetResource().Resource)
	}
	return all
}

// left are the pods, claims and Secrets of Velero's namespace, and the reclaim policies of volumes.
func left(t *testing.T, client *fake.Clientset) []string {
	t.Helper()
	var all []string
	pods, err := client.CoreV1().Pods("velero").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, pod := range pods.Items {
		all = append(all, "pod "+pod.Name)
	}
	claims, err := client.CoreV1().PersistentVolumeClaims("velero").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, claim := range claims.Items {
		all = append(all, "claim "+claim.Name)
	}
	secrets, err := client.CoreV1().Secrets("velero").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, secret := range secrets.Items {
		all = append(all, "secret "+secret.Name)
	}
	volumes, err := client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, volume := range volumes.Items {
		all = append(all, fmt.Sprintf("volume %s %s", volume.Name, volume.Spec.PersistentVolumeReclaimPolicy))
	}
	return all
}

// faults are the possible faults of a request.
func faults() map[string]func(client *fake.Clientset, action clienttesting.Action) error {
	return map[string]func(*fake.Clientset, clienttesting.Action) error{
		"is answered with 500": func(*fake.Clientset, clienttesting.Action) error {
			return apierrors.NewInternalError(errors.New("etcd"))
		},
		"is answered with 429": func(*fake.Clientset, clienttesting.Action) error {
			return apierrors.NewTooManyRequests("slow down", 1)
		},
		"is answered with 409": func(_ *fake.Clientset, action clienttesting.Action) error {
			return apierrors.NewConflict(action.GetResource().GroupResource(), "b1", errors.New("changed"))
		},
		"is lost on its way": func(*fake.Clientset, clienttesting.Action) error {
			return context.DeadlineExceeded
		},
		"is done, and the answer is lost": func(client *fake.Clientset, action clienttesting.Action) error {
			if _, _, err := clienttesting.ObjectReaction(client.Tracker())(action); err != nil {
				return err
			}
			return context.DeadlineExceeded
		},
	}
}

// breakAt injects a fault into the request of that number, from 1.
func breakAt(client *fake.Clientset, number int, fault func(*fake.Clientset, clienttesting.Action) error) {
	observed := 0
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if observed++; observed != number {
			return false, nil, nil
		}
		return true, nil, fault(client, action)
	})
}

func TestEnsureConvergesAfterAnyFailedRequest(t *testing.T) {
	for name, test := range map[string]struct {
		move     objects.MoverSpec
		settings objects.Settings
		clean    []string
		creates  []string
	}{
		"for a pod's volume": {
			settings: cached(), move: restore(), clean: []string{"create persistentvolumeclaims", "create pods"}, creates: []string{"pod b1", "claim b1-cache"},
		},
		"for a claim": {
			settings: cached(), move: download(), creates: []string{"pod b1", "claim b1", "claim b1-cache"},
			clean: []string{"get persistentvolumeclaims", "create persistentvolumeclaims", "create persistentvolumeclaims", "create pods"},
		},
		"for a claim, with copies": {
			settings: copied(), move: download(), creates: []string{"pod b1", "claim b1", "secret key"},
			clean: []string{
				"get persistentvolumeclaims", "get secrets", "get configmaps",
				"create persistentvolumeclaims", "create secrets", "create configmaps", "create pods",
			},
		},
	} {
		originals := []runtime.Object{freeClaim(), secret("app", "s3cret"), configMap()}
		client := fake.NewClientset(originals...)
		_, err := exposed(client, test.settings).Ensure(t.Context(), test.move)
		require.NoError(t, err)
		require.Equal(t, test.clean, requests(client), "a request too many costs every transfer")
		require.Equal(t, test.creates, left(t, client))
		for fault, happens := range faults() {
			for number, request := range test.clean {
				t.Run(fmt.Sprintf("%s, when request %d (%s) %s", name, number+1, request, fault), func(t *testing.T) {
					client := fake.NewClientset(originals...)
					breakAt(client, number+1, happens)
					e := exposed(client, test.settings)
					_, err := e.Ensure(t.Context(), test.move)
					require.Error(t, err)
					terminal := (*TerminalError)(nil)
					require.NotErrorAs(t, err, &terminal, "it passes")
					_, err = e.Ensure(t.Context(), test.move)
					require.NoError(t, err)
					require.Equal(t, test.creates, left(t, client))
				})
			}
		}
	}
}

func TestCleanUpConvergesAfterAnyFailedRequest(t *testing.T) {
	move := download()
	created := func(name string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name, UID: "claim-uid"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv1"},
		}
	}
	retained := csiVolume(corev1.PersistentVolumeFilesystem)
	retained.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "d"}
	retained.Spec.PersistentVolumeReclaimPolicy, retained.Spec.ClaimRef = corev1.PersistentVolumeReclaimRetain, &corev1.ObjectReference{UID: "claim-uid"}
	found := Existing{Pod: mover(), Claims: []*corev1.PersistentVolumeClaim{created("b1")}}
	start := func() *fake.Clientset {
		return fake.NewClientset(found.Pod.DeepCopy(), created("b1"), retained.DeepCopy())
	}

	client := start()
	waits, err := exposed(client, objects.Settings{}).CleanUp(t.Context(), move, found)
	require.NoError(t, err)
	require.Empty(t, waits)
	clean := requests(client)
	require.Equal(t, []string{"delete pods", "get persistentvolumes", "patch persistentvolumes", "delete persistentvolumeclaims"}, clean,
		"the volume gets policy Delete before its claim is deleted")
	for fault, happens := range faults() {
		for number, request := range clean {
			t.Run(fmt.Sprintf("when request %d (%s) %s", number+1, request, fault), func(t *testing.T) {
				client := start()
				breakAt(client, number+1, happens)
				e := exposed(client, objects.Settings{})
				_, err := e.CleanUp(t.Context(), move, found)
				require.Error(t, err)
				_, err = e.CleanUp(t.Context(), move, found)
				require.NoError(t, err)
				require.Equal(t, []string{"volume pv1 Delete"}, left(t, client))
			})
		}
	}
}

func TestEnsureAnExistingClaim(t *testing.T) {
	move := download()
	move.Attempt = 1
	plan := objects.PlanOf(move, objects.VolumeInfo{OS: corev1.Linux, Target: freeClaim()}, objects.Template{}, objects.Settings{})
	for name, test := range map[string]struct {
		change  func(*corev1.PersistentVolumeClaim)
		message string
		waits   string
		want    []string
	}{
		"of an earlier attempt is deleted": {
			change: func(claim *corev1.PersistentVolumeClaim) { claim.Annotations[api.AnnotationAttempt] = "0" },
			want:   []string{"create persistentvolumeclaims", "get persistentvolumeclaims", "delete persistentvolumeclaims"}, waits: "claim velero/b1 is being deleted",
		},
		"of an earlier attempt of Velero's agent is deleted and looked up again": {
			change:  func(claim *corev1.PersistentVolumeClaim) { claim.Annotations, claim.Labels = nil, nil },
			want:    []string{"create persistentvolumeclaims", "get persistentvolumeclaims", "delete persistentvolumeclaims"},
			message: "claim velero/b1 is being deleted",
		},
		"with this owner is used unchanged": {
			change: func(*corev1.PersistentVolumeClaim) {}, want: []string{"create persistentvolumeclaims", "get persistentvolumeclaims"},
		},
		"of Velero's agent is labelled": {
			change: func(claim *corev1.PersistentVolumeClaim) { claim.Labels = nil },
			want:   []string{"create persistentvolumeclaims", "get persistentvolumeclaims", "patch persistentvolumeclaims"},
		},
		"of another owner is not changed": {
			change: func(claim *corev1.PersistentVolumeClaim) { claim.OwnerReferences[0].UID = "of-an-older-one" },
			want:   []string{"create persistentvolumeclaims", "get persistentvolumeclaims"}, message: "has another owner",
		},
		"that is deleting blocks the creation": {
			change: func(claim *corev1.PersistentVolumeClaim) {
				claim.DeletionTimestamp, claim.Finalizers = new(metav1.Now()), []string{"kubernetes.io/pvc-protection"}
			},
			want: []string{"create persistentvolumeclaims", "get persistentvolumeclaims"}, waits: "claim velero/b1 is being deleted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			claim := plan.Claims[0].DeepCopy()
			test.change(claim)
			client := fake.NewClientset(claim)
			_, waits, err := exposed(client, objects.Settings{}).ensureClaim(t.Context(), plan.Claims[0])
			require.Equal(t, test.waits, waits)
			if test.message == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.message)
			}
			require.Equal(t, test.want, requests(client))
		})
	}
}
