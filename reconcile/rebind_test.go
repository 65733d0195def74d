package reconcile

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// newLateDelivery returns a DataDownload whose rebind is past its deadline. Its agent has just started and has no local
// state.
func newLateDelivery(t *testing.T, objects ...runtime.Object) *single[*velerov2alpha1.DataDownload] {
	t.Helper()
	download := &velerov2alpha1.DataDownload{
		ObjectMeta: metav1.ObjectMeta{Finalizers: []string{api.FinalizerData}},
		Spec:       velerov2alpha1.DataDownloadSpec{TargetVolume: velerov2alpha1.TargetVolumeSpec{Namespace: "app", PVC: "restored"}},
		Status:     velerov2alpha1.DataDownloadStatus{Phase: velerov2alpha1.DataDownloadPhaseInProgress, Node: testNode},
	}
	s := newSingle(transfer.DataDownload(), download)
	moved := s.clock.Now().Add(-s.Limits.RebindTimeout - time.Minute)
	download.Annotations = map[string]string{api.AnnotationMoved: moved.UTC().Format(time.RFC3339)}
	for _, object := range objects {
		require.NoError(t, s.kube.Tracker().Add(object))
	}
	return s
}

func TestARebindPastItsDeadlineIsObservedOnceMore(t *testing.T) {
	target := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "restored", UID: "target-uid"}}
	bound := target.DeepCopy()
	bound.Spec.VolumeName, bound.Status.Phase = "pv", corev1.ClaimBound
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pv", UID: "pv-uid", Labels: map[string]string{api.LabelRebind: "b1-uid"}, Annotations: map[string]string{api.AnnotationReclaimPolicy: "Delete"},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, ClaimRef: &corev1.ObjectReference{Namespace: "app", Name: "restored"},
		},
	}
	held := volume.DeepCopy()
	held.Spec.ClaimRef.UID, held.Status.Phase = "target-uid", corev1.VolumeBound
	done := held.DeepCopy()
	done.Annotations, done.Spec.PersistentVolumeReclaimPolicy = nil, corev1.PersistentVolumeReclaimDelete
	for name, test := range map[string]struct {
		target  *corev1.PersistentVolumeClaim
		volume  *corev1.PersistentVolume
		bind    bool // Kubernetes binds them before the agent's grace ends, and no event reports it
		phase   velerov2alpha1.DataDownloadPhase
		policy  corev1.PersistentVolumeReclaimPolicy
		message string
	}{
		"the target is bound, all is done": {target: bound, volume: done, phase: "Completed", policy: "Delete"},
		"the target is bound unheard":      {target: target, volume: volume, bind: true, phase: "Completed", policy: "Delete"},
		"the target is not bound": {target: target, volume: volume, phase: "Failed", policy: "Retain",
			message: "restored volume was not rebound in time; target claim app/restored is not yet bound to PersistentVolume pv; restored volume kept as PersistentVolume pv"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLateDelivery(t, test.target.DeepCopy(), test.volume.DeepCopy())
			s.pods[testKey] = newWorking().pods[testKey]
			s.pods[testKey].Status.Phase = corev1.PodSucceeded
			var logs []string
			s.MoverLog = func(_ context.Context, mover string, _ []byte) { logs = append(logs, mover) }
			require.Equal(t, s.Limits.RebindGrace, s.step(t))
			require.Equal(t, velerov2alpha1.DataDownloadPhaseInProgress, s.object.Status.Phase)
			if test.bind {
				require.NoError(t, s.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), bound, "app"))
				require.NoError(t, s.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), held, ""))
			}
			s.clock.Step(s.Limits.RebindGrace)
			s.step(t)
			s.step(t)
			require.Equal(t, test.phase, s.object.Status.Phase)
			require.Equal(t, test.message, s.object.Status.Message)
			volume, err := s.kube.CoreV1().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, test.policy, volume.Spec.PersistentVolumeReclaimPolicy)
			require.Equal(t, []string{testKey}, logs, "saved once, before the mover is deleted")
		})
	}
}

// An admission policy may refuse every change. Then nothing is bound, and nothing else changes by waiting.
func TestARebindThatTheAPIServerRefusesFailsAtItsDeadline(t *testing.T) {
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "pv-uid"},
		Spec:       corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "velero", Name: "b1", UID: "b1-claim"}},
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "b1-claim", OwnerReferences: []metav1.OwnerReference{{UID: "b1-uid", Controller: new(true)}}},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
	}
	for name, test := range map[string]struct {
		answer error
		phase  velerov2alpha1.DataDownloadPhase
	}{
		"refused":      {apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "pv", errors.New("by policy")), "Failed"},
		"not answered": {errors.New("connection refused"), "InProgress"},
		"unauthorized": {apierrors.NewUnauthorized("expired token"), "InProgress"},
		"changed":      {apierrors.NewConflict(corev1.Resource("persistentvolumes"), "pv", nil), "InProgress"},
	} {
		t.Run(name, func(t *testing.T) {
			target := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "restored", UID: "target-uid"}}
			s := newLateDelivery(t, target, volume.DeepCopy(), claim.DeepCopy())
			s.kube.PrependReactor("patch", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, test.answer
			})
			_, err := s.Reconcile(t.Context(), testKey)
			require.Error(t, err)
			s.clock.Step(s.Limits.RebindGrace)
			_, err = s.Reconcile(t.Context(), testKey)
			require.Equal(t, test.phase == "Failed", err == nil)
			require.Equal(t, test.phase, s.object.Status.Phase)
			if test.phase == "Failed" {
				require.Contains(t, s.object.Status.Message, "restored volume was not rebound in time; ")
				require.Contains(t, s.object.Status.Message, "restored PersistentVolume pv cannot be kept, and is deleted with its claim unless its reclaim policy is Retain: ")
			}
		})
	}
}

func TestAnAgentWatchesTheClaimOfARestoreThatTheCoordinatorExposed(t *testing.T) {
	s := newLateDelivery(t)
	s.Agent.Fleet = followerFleet{}
	s.step(t)
	require.Equal(t, types.NamespacedName{Namespace: "velero", Name: "b1"}, s.restored.watched)
	require.Empty(t, s.kube.Actions(), "the watch enqueues it")
	s.restored.known = true
	s.step(t)
	require.NotEmpty(t, s.kube.Actions())
	require.NotZero(t, s.restored.watched, "until the volume is rebound")
	s.clock.Step(s.Limits.RebindGrace)
	s.step(t)
	require.Equal(t, velerov2alpha1.DataDownloadPhaseFailed, s.object.Status.Phase)
	s.step(t)
	require.Zero(t, s.restored.watched)
}
