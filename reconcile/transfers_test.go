package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

const (
	testKey  = "velero/b1"
	testNode = "n1"
)

// fixture is one PodVolumeBackup with an API server that can fail. Its kubelet acts when nothing else does. The caches
// always match the API server.
type fixture struct {
	*TransferReconciler[*velerov1.PodVolumeBackup]
	backup *velerov1.PodVolumeBackup
	kube   *fake.Clientset
	clock  *testingclock.FakeClock
	fault  fault
	calls  map[string]int // by verb and resource
	events *record.FakeRecorder
}

// fault is one call that fails.
type fault struct {
	call      string // verb and resource
	ordinal   int    // number of the call that fails
	err       error
	committed bool // the call took effect, only its answer was lost
}

func newFixture(t *testing.T, f fault) *fixture {
	t.Helper()
	source := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "db", UID: "pod-uid"},
		Spec: corev1.PodSpec{NodeName: testNode, Volumes: []corev1.Volume{{
			Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		}}},
	}
	s := &fixture{
		kube: fake.NewClientset(source), clock: testingclock.NewFakeClock(time.Unix(1_800_000_000, 0)),
		fault: f, calls: map[string]int{}, events: record.NewFakeRecorder(100),
		backup: &velerov1.PodVolumeBackup{
			ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "b1-uid", ResourceVersion: "1", CreationTimestamp: metav1.NewTime(time.Unix(1_800_000_000, 0))},
			Spec: velerov1.PodVolumeBackupSpec{
				Node: testNode, Volume: "data", UploaderType: "kopia",
				Pod: corev1.ObjectReference{Namespace: "app", Name: "db", UID: "pod-uid"},
			},
		},
	}
	s.kube.PrependReactor("*", "*", s.react)
	s.TransferReconciler = &TransferReconciler[*velerov1.PodVolumeBackup]{
		Kind: transfer.PodVolumeBackup(),
		Dependencies: Dependencies{
			Agent:  transfer.Agent{Node: testNode, Fleet: followerFleet{}},
			Limits: transfer.DefaultLimits(), ResourceTimeout: time.Minute,
			Pods: s, Claims: s, Targets: noTargets{}, TargetPods: noTargets{}, Restored: noTargets{}, Movers: noReports{},
			LivePod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
				return s.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
			},
			Exposer: &exposer.Exposer{
				Client: s.kube, Templates: map[corev1.OSName]objects.Template{corev1.Linux: {}},
				Paths: exposer.HostPaths{Client: s.kube, PodsDir: "/pods"}, Source: s.Pod,
			},
			NodeSlots: capacity.NewNodeSlots(testNode, 1, 1), Admission: capacity.NewAdmission(0, 1, time.Minute, s.clock), Preparing: capacity.Unpaced(), Recorder: s.events, Clock: s.clock,
			MoverLog: func(context.Context, string, []byte) {},
		},
		Cached: func(string) (*velerov1.PodVolumeBackup, bool) { return s.backup.DeepCopy(), s.backup != nil },
		Client: s, Enqueue: func(string) {},
		OnUpdate: func(*velerov1.PodVolumeBackup, transfer.State, transfer.State) {},
	}
	return s
}

// fails counts a call and reports whether it is the one that fails.
func (s *fixture) fails(call string) bool {
	s.calls[call]++
	return s.fault.call == call && s.fault.ordinal == s.calls[call]
}

func (s *fixture) react(action clienttesting.Action) (bool, runtime.Object, error) {
	call := action.GetVerb() + " " + action.GetResource().Resource
	if sub := action.GetSubresource(); sub != "" {
		call += "/" + sub
	}
	if !s.fails(call) {
		return false, nil, nil
	}
	if s.fault.committed {
		tracker := clienttesting.ObjectReaction(s.kube.Tracker())
		if _, _, err := tracker(action); err != nil {
			return true, nil, err
		}
	}
	return true, nil, s.fault.err
}

// Patch applies a JSON merge patch as the API server does. It checks the resourceVersion.
func (s *fixture) Patch(_ context.Context, _ string, _ types.PatchType, patch []byte, _ metav1.PatchOptions, _ ...string) (*velerov1.PodVolumeBackup, error) {
	wrong := s.fails("patch podvolumebackups")
	if wrong && !s.fault.committed {
		return nil, s.fault.err
	}
	original, err := json.Marshal(s.backup)
	if err != nil {
		return nil, err
	}
	var want struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(patch, &want); err != nil {
		return nil, err
	}
	if want.Metadata.ResourceVersion != s.backup.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "podvolumebackups"}, "b1", errors.New("stale"))
	}
	merged, err := jsonpatch.MergePatch(original, patch)
	if err != nil {
		return nil, err
	}
	written := &velerov1.PodVolumeBackup{}
	if err := json.Unmarshal(merged, written); err != nil {
		return nil, err
	}
	version, err := strconv.Atoi(s.backup.ResourceVersion)
	if err != nil {
		return nil, err
	}
	written.ResourceVersion = strconv.Itoa(version + 1)
	s.backup = written
	if wrong {
		return nil, s.fault.err
	}
	return written.DeepCopy(), nil
}

// Claim returns nil: no claim exists.
func (s *fixture) Claim(string) *corev1.PersistentVolumeClaim { return nil }

func (s *fixture) Mover(string) *corev1.Pod { return s.pod("velero", "b1") }

func (s *fixture) Pod(key string) *corev1.Pod {
	if key == "app/db" {
		return s.pod("app", "db")
	}
	return nil
}

func (s *fixture) pod(namespace, name string) *corev1.Pod {
	object, err := s.kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), namespace, name)
	if err != nil {
		return nil
	}
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return nil
	}
	return pod.DeepCopy()
}

// kubelet advances the mover by one phase, as far as its resource allows.
func (s *fixture) kubelet(t *testing.T) {
	t.Helper()
	pod := s.Mover(testKey)
	if pod == nil {
		return
	}
	switch {
	case pod.Spec.NodeName == "":
		pod.UID, pod.Spec.NodeName, pod.Status.Phase = "mover-uid", testNode, corev1.PodRunning
	case s.backup.Status.Phase == velerov1.PodVolumeBackupPhaseInProgress && pod.Status.Phase == corev1.PodRunning:
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "b1-uid", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Message: `{"snapshotID":"snap","source":{"byPath":"/b1-uid"},"totalBytes":10}`,
		}}}}
	default:
		return
	}
	require.NoError(t, s.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "velero"))
}

// run reconciles until the transfer is terminal and cleaned up.
func (s *fixture) run(t *testing.T) {
	t.Helper()
	const most = 40
	for range most {
		if _, err := s.Reconcile(t.Context(), testKey); err != nil {
			t.Log("step:", err)
		}
		s.kubelet(t)
		if s.backup.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted && len(s.backup.Finalizers) == 0 {
			return
		}
		s.clock.SetTime(s.clock.Now().Add(time.Second))
	}
	require.Failf(t, "did not converge", "after %d steps: %+v, mover left: %v", most, s.backup.Status, s.Mover(testKey) != nil)
}

// noReports is a mover that reports nothing.
type noReports struct{}

func (noReports) Watch(types.UID, func())                      {}
func (noReports) Forget(types.UID)                             {}
func (noReports) WatchNext(context.Context, types.UID, func()) {}
func (noReports) Last(types.UID, string, *corev1.Pod) (message string, at time.Time, ok bool) {
	return message, at, ok
}

// noTargets has no target claim.
type noTargets struct{}

func (noTargets) Watch(types.UID, types.NamespacedName, func()) {}
func (noTargets) Forget(types.UID)                              {}

func (noTargets) Claim(types.UID) (claim *corev1.PersistentVolumeClaim, known bool) {
	return nil, false
}
