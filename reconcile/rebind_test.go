package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// lateDelivery is a DataDownload whose rebind is past its deadline. Its agent has just started and has no local
// state.
type lateDelivery struct {
	*TransferReconciler[*velerov2alpha1.DataDownload]
	download *velerov2alpha1.DataDownload
	kube     *fake.Clientset
	clock    *testingclock.FakePassiveClock
}

func newLateDelivery(objects ...runtime.Object) *lateDelivery {
	now := time.Unix(1_800_000_000, 0)
	moved := now.Add(-transfer.DefaultLimits().RebindTimeout - time.Minute)
	l := &lateDelivery{clock: testingclock.NewFakePassiveClock(now), kube: fake.NewClientset(objects...), download: &velerov2alpha1.DataDownload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: "d1", UID: "d1-uid", Annotations: map[string]string{api.AnnotationMoved: moved.UTC().Format(time.RFC3339)},
			Finalizers: []string{api.FinalizerData},
		},
		Spec:   velerov2alpha1.DataDownloadSpec{TargetVolume: velerov2alpha1.TargetVolumeSpec{Namespace: "app", PVC: "restored"}},
		Status: velerov2alpha1.DataDownloadStatus{Phase: velerov2alpha1.DataDownloadPhaseInProgress, Node: testNode},
	}}
	l.TransferReconciler = &TransferReconciler[*velerov2alpha1.DataDownload]{
		Kind: transfer.DataDownload(),
		Dependencies: Dependencies{
			Agent:  transfer.Agent{Node: testNode, Fleet: coordinatorFleet{}},
			Limits: transfer.DefaultLimits(), Pods: emptyCaches{}, Claims: emptyCaches{}, Targets: noTargets{}, TargetPods: noTargets{}, Restored: noTargets{}, Movers: noReports{},
			Exposer:   &exposer.Exposer{Client: l.kube, Paths: exposer.HostPaths{Client: l.kube}},
			NodeSlots: capacity.NewNodeSlots(testNode, 1, 1),
			Preparing: capacity.Unpaced(),
			Admission: capacity.NewAdmission(0, 1, time.Minute, testingclock.NewFakeClock(now)), Recorder: record.NewFakeRecorder(10), Clock: l.clock,
			MoverLog: func(context.Context, string, []byte) {},
		},
		Cached: func(string) (*velerov2alpha1.DataDownload, bool) { return l.download.DeepCopy(), true },
		Client: l, Enqueue: func(string) {},
		OnUpdate: func(*velerov2alpha1.DataDownload, transfer.State, transfer.State) {},
	}
	return l
}

// Patch applies a merge patch as the API server does; there is only one writer.
func (l *lateDelivery) Patch(_ context.Context, _ string, _ types.PatchType, patch []byte, _ metav1.PatchOptions, _ ...string) (*velerov2alpha1.DataDownload, error) {
	original, err := json.Marshal(l.download)
	if err != nil {
		return nil, err
	}
	merged, err := jsonpatch.MergePatch(original, patch)
	if err != nil {
		return nil, err
	}
	written := &velerov2alpha1.DataDownload{}
	if err := json.Unmarshal(merged, written); err != nil {
		return nil, err
	}
	l.download = written
	return written.DeepCopy(), nil
}

// emptyCaches is a cache without movers and claims.
type emptyCaches struct{}

func (emptyCaches) Mover(string) *corev1.Pod                   { return nil }
func (emptyCaches) Pod(string) *corev1.Pod                     { return nil }
func (emptyCaches) Claim(string) *corev1.PersistentVolumeClaim { return nil }

func TestARebindPastItsDeadlineIsTriedOnceMore(t *testing.T) {
	target := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "restored", UID: "target-uid"}}
	bound := target.DeepCopy()
	bound.Spec.VolumeName, bound.Status.Phase = "pv", corev1.ClaimBound
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pv", UID: "pv-uid", Labels: map[string]string{api.LabelRebind: "d1-uid"}, Annotations: map[string]string{api.AnnotationReclaimPolicy: "Delete"},
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
		"the target is bound":                   {target: bound, volume: held, phase: "Completed", policy: "Delete"},
		"the target is bound, all else is done": {target: bound, volume: done, phase: "Completed", policy: "Delete"},
		"the target is bound unheard":           {target: target, volume: volume, bind: true, phase: "Completed", policy: "Delete"},
		"the target is not bound": {target: target, volume: volume, phase: "Failed", policy: "Retain",
			message: "restored volume was not rebound in time; target claim app/restored is not yet bound to PersistentVolume pv; restored volume kept as PersistentVolume pv"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLateDelivery(test.target.DeepCopy(), test.volume.DeepCopy())
			requeue, err := l.Reconcile(t.Context(), "velero/d1")
			require.NoError(t, err)
			require.Equal(t, l.Limits.RebindGrace, requeue)
			require.Equal(t, velerov2alpha1.DataDownloadPhaseInProgress, l.download.Status.Phase)
			if test.bind {
				require.NoError(t, l.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), bound, "app"))
				require.NoError(t, l.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), held, ""))
			}
			l.clock.SetTime(l.clock.Now().Add(requeue))
			for range 2 {
				_, err := l.Reconcile(t.Context(), "velero/d1")
				require.NoError(t, err)
			}
			require.Equal(t, test.phase, l.download.Status.Phase)
			require.Equal(t, test.message, l.download.Status.Message)
			volume, err := l.kube.CoreV1().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{})
			require.NoError(t, err)
			require.Equal(t, test.policy, volume.Spec.PersistentVolumeReclaimPolicy)
		})
	}
}

// TestALastAttemptThatReservesTheVolumeWaitsForItsBinding lets all attempts but the last one fail, as those of an agent
// that is cut off do. An earlier version reserved the volume and gave up: Kubernetes then bound a Failed restore.
func TestALastAttemptThatReservesTheVolumeWaitsForItsBinding(t *testing.T) {
	target := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "restored", UID: "target-uid"}}
	for phase, binds := range map[velerov2alpha1.DataDownloadPhase]bool{"Completed": true, "Failed": false} {
		t.Run(string(phase), func(t *testing.T) {
			l := newLateDelivery(target, &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{
					Name: "pv", UID: "pv-uid", Labels: map[string]string{api.LabelRebind: "d1-uid"}, Annotations: map[string]string{api.AnnotationReclaimPolicy: "Delete"},
				},
				Spec: corev1.PersistentVolumeSpec{
					PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, ClaimRef: &corev1.ObjectReference{Namespace: "velero", Name: "d1", UID: "gone-uid"},
				},
			})
			cut := true
			l.kube.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				return cut, nil, errors.New("connection refused")
			})
			_, err := l.Reconcile(t.Context(), "velero/d1")
			require.ErrorContains(t, err, "connection refused")
			cut = false
			l.clock.SetTime(l.clock.Now().Add(l.Limits.RebindGrace))
			for range 2 {
				_, err = l.Reconcile(t.Context(), "velero/d1")
				require.NoError(t, err)
				require.Equal(t, velerov2alpha1.DataDownloadPhaseInProgress, l.download.Status.Phase)
			}
			if binds {
				bound := target.DeepCopy()
				bound.Spec.VolumeName, bound.Status.Phase = "pv", corev1.ClaimBound
				require.NoError(t, l.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), bound, "app"))
			}
			l.clock.SetTime(l.clock.Now().Add(l.Limits.RebindGrace))
			for range 2 {
				_, err = l.Reconcile(t.Context(), "velero/d1")
				require.NoError(t, err)
			}
			require.Equal(t, phase, l.download.Status.Phase)
		})
	}
}

// restoredClaim is the watch of the claim into which a mover restored.
type restoredClaim struct {
	noTargets
	watched types.NamespacedName
	known   bool
}

func (r *restoredClaim) Watch(_ types.UID, claim types.NamespacedName, _ func()) { r.watched = claim }
func (r *restoredClaim) Forget(types.UID)                                        { r.watched = types.NamespacedName{} }

func (r *restoredClaim) Claim(types.UID) (claim *corev1.PersistentVolumeClaim, known bool) {
	return nil, r.known
}

func TestAnAgentWatchesTheClaimOfARestoreThatTheCoordinatorExposed(t *testing.T) {
	l, watch := newLateDelivery(), &restoredClaim{}
	l.Agent.Fleet, l.Restored = followerFleet{}, watch
	_, err := l.Reconcile(t.Context(), "velero/d1")
	require.NoError(t, err)
	require.Equal(t, types.NamespacedName{Namespace: "velero", Name: "d1"}, watch.watched)
	require.Empty(t, l.kube.Actions(), "the watch enqueues it")
	watch.known = true
	_, err = l.Reconcile(t.Context(), "velero/d1")
	require.NoError(t, err)
	require.NotEmpty(t, l.kube.Actions())
	require.NotZero(t, watch.watched, "until the volume is rebound")
	l.clock.SetTime(l.clock.Now().Add(l.Limits.RebindGrace))
	_, err = l.Reconcile(t.Context(), "velero/d1")
	require.NoError(t, err)
	require.Equal(t, velerov2alpha1.DataDownloadPhaseFailed, l.download.Status.Phase)
	_, err = l.Reconcile(t.Context(), "velero/d1")
	require.NoError(t, err)
	require.Zero(t, watch.watched)
}
