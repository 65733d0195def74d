package exposer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

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

// left are the pods and claims of Velero's namespace, and the reclaim policies of volumes.
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
	volumes, err := client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, volume := range volumes.Items {
		all = append(all, fmt.Sprintf("volume %s %s", volume.Name, volume.Spec.PersistentVolumeReclaimPolicy))
	}
	return all
}

// A request too many costs every transfer.
func TestEnsureSendsOneRequestForEachObject(t *testing.T) {
	for name, test := range map[string]struct {
		move     objects.MoverSpec
		settings objects.Settings
		requests []string
		creates  []string
	}{
		"for a pod's volume": {
			settings: cached(), move: restore(), requests: []string{"create persistentvolumeclaims", "create pods"}, creates: []string{"pod b1", "claim b1-cache"},
		},
		"for a claim": {
			settings: cached(), move: download(), creates: []string{"pod b1", "claim b1", "claim b1-cache"},
			requests: []string{"get persistentvolumeclaims", "create persistentvolumeclaims", "create persistentvolumeclaims", "create pods"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(freeClaim())
			_, err := exposed(client, test.settings).Ensure(t.Context(), test.move)
			require.NoError(t, err)
			require.Equal(t, test.requests, requests(client))
			require.Equal(t, test.creates, left(t, client))
		})
	}
}

func TestCleanUpDeletesTheVolumeOfARestoreClaim(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "claim-uid"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv1"},
	}
	retained := csiVolume(corev1.PersistentVolumeFilesystem)
	retained.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "d"}
	retained.Spec.PersistentVolumeReclaimPolicy, retained.Spec.ClaimRef = corev1.PersistentVolumeReclaimRetain, &corev1.ObjectReference{UID: "claim-uid"}
	client := fake.NewClientset(mover(), claim, retained)
	waits, err := exposed(client, objects.Settings{}).CleanUp(t.Context(), download(), Existing{Pod: mover(), Claims: []*corev1.PersistentVolumeClaim{claim}})
	require.NoError(t, err)
	require.Empty(t, waits)
	require.Equal(t, []string{"delete pods", "get persistentvolumes", "patch persistentvolumes", "delete persistentvolumeclaims"}, requests(client),
		"the volume gets policy Delete before its claim is deleted")
	require.Equal(t, []string{"volume pv1 Delete"}, left(t, client))
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
