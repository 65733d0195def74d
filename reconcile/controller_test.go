package reconcile

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// driven is a controller in a synctest bubble.
type driven struct {
	*Controller
	started time.Time
	stop    context.CancelFunc
	stopped chan struct{} // closed when Run has returned

	lock  sync.Mutex
	calls map[string][]time.Duration // when each key was reconciled, since the start
}

const testGrace = 4 * time.Second

// drive runs a controller with these first keys and stops it when the test ends.
func drive(t *testing.T, workers int, first []string, step Func) *driven {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, stop := context.WithCancel(ctx)
	d := &driven{started: time.Now(), stop: stop, stopped: make(chan struct{}), calls: map[string][]time.Duration{}}
	options := Options{Name: "test", Workers: workers, Grace: testGrace, Clock: clock.RealClock{}}
	d.Controller = NewController(options, func(ctx context.Context, key string) (time.Duration, error) {
		d.lock.Lock()
		d.calls[key] = append(d.calls[key], time.Since(d.started))
		d.lock.Unlock()
		return step(ctx, key)
	})
	go func() {
		defer close(d.stopped)
		d.Run(ctx, first)
	}()
	t.Cleanup(func() {
		stop()
		<-d.stopped
	})
	return d
}

// pass advances the time and runs everything that is due before its end.
func (d *driven) pass(duration time.Duration) {
	<-time.NewTimer(duration).C
	synctest.Wait()
}

func TestAFailedReconcileIsRetriedWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drive(t, 1, []string{"a"}, func(context.Context, string) (time.Duration, error) {
			return time.Hour, errors.New("the API server is unreachable")
		})
		d.pass(24 * time.Hour)
		var want []time.Duration
		for at, pause := time.Duration(0), minBackoff; at <= 24*time.Hour; at, pause = at+pause, min(2*pause, maxBackoff) {
			want = append(want, at)
		}
		require.Equal(t, want, d.calls["a"])
		require.Greater(t, len(want), 2800, "a day of tries")
	})
}

func TestASuccessResetsTheBackoffAndMayRequestADelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		answers := []error{failed, failed, nil, failed, nil}
		d := drive(t, 1, []string{"a"}, func(context.Context, string) (time.Duration, error) {
			err := answers[0]
			answers = answers[1:]
			return time.Duration(min(len(answers), 1)) * time.Second, err // a delay with an error is ignored
		})
		d.pass(24 * time.Hour)
		ms := time.Millisecond
		require.Equal(t, []time.Duration{0, 20 * ms, 60 * ms, 1060 * ms, 1080 * ms}, d.calls["a"])
	})
}

func TestAControllerIsReadyOnceEveryFirstKeyWasTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		d := drive(t, 3, []string{"works", "fails", "takes long"}, func(_ context.Context, key string) (time.Duration, error) {
			if key == "takes long" {
				<-block
			}
			return 0, map[string]error{"fails": errors.New("no")}[key]
		})
		d.pass(time.Minute)
		select {
		case <-d.Ready():
			require.Fail(t, "one is being tried still")
		default:
		}
		close(block)
		<-d.Ready() // a failure counts as tried
		d = drive(t, 1, nil, func(context.Context, string) (time.Duration, error) { return 0, nil })
		<-d.Ready()
		d.Enqueue("a")
		synctest.Wait()
		require.Equal(t, []time.Duration{0}, d.calls["a"], "it works without first keys")
	})
}

func TestAStoppingControllerFinishesTheRunningReconcilesWithinTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 3 * time.Second
		var ended error
		d := drive(t, 1, []string{"a", "b"}, func(ctx context.Context, _ string) (time.Duration, error) {
			<-time.NewTimer(takes).C
			ended = ctx.Err()
			return 0, nil
		})
		synctest.Wait()
		d.stop()
		<-d.stopped
		require.Equal(t, takes, time.Since(d.started))
		require.NoError(t, ended, "the running reconcile has its context until the grace period is over")
		require.Empty(t, d.calls["b"], "nothing new is begun")
		require.Zero(t, d.queue.Len())
		d = drive(t, 2, []string{"a", "b"}, func(ctx context.Context, _ string) (time.Duration, error) {
			<-ctx.Done() // like a request to an API server that does not answer
			return 0, ctx.Err()
		})
		d.pass(time.Hour)
		stopping := time.Now()
		d.stop()
		<-d.stopped
		require.Equal(t, testGrace, time.Since(stopping))
	})
}

// A reserved slot stays reserved unless an answer proves that nothing was written. Otherwise another transfer would
// take the slot of a running one. A rejected write releases its slot at once (T6).
func TestASlotIsReleasedOnlyIfNothingWasWritten(t *testing.T) {
	resource := velerov1.Resource("podvolumebackups")
	for name, test := range map[string]struct {
		answer error
		kept   int
	}{
		"302":              {apierrors.NewGenericServerResponse(302, "patch", resource, "b1", "moved", 0, true), 1},
		"400":              {apierrors.NewBadRequest("no patch"), 0},
		"500":              {apierrors.NewInternalError(errors.New("etcd")), 1},
		"503":              {apierrors.NewServiceUnavailable("starting"), 1},
		"504":              {apierrors.NewTimeoutError("etcd", 1), 1},
		"timeout":          {context.DeadlineExceeded, 1},
		"connection reset": {io.ErrUnexpectedEOF, 1},
		"403":              {apierrors.NewForbidden(resource, "b1", errors.New("no rights")), 0},
		"422":              {apierrors.NewInvalid(velerov1.SchemeGroupVersion.WithKind("PodVolumeBackup").GroupKind(), "b1", nil), 0},
		"429":              {apierrors.NewTooManyRequests("slow down", 1), 0},
	} {
		for _, committed := range []bool{false, true}[:1+test.kept] {
			s := newFixture(t, fault{call: "patch podvolumebackups", ordinal: 3, err: test.answer, committed: committed})
			s.Preparing.SetLimits(capacity.Limits{Cluster: 1})
			s.prepare(t)
			s.stepFails(t, "write started to velero/b1: ")
			require.Equal(t, test.kept, s.NodeSlots.On(testNode).InUse(), "%s, written: %t", name, committed)
			require.False(t, s.Preparing.TryAcquire(capacity.Transfer{UID: "another"}, func() {}), "it is accepted")
		}
	}
}

func TestAWriteIsReportedOnceIfItsAnswerIsLost(t *testing.T) {
	for _, committed := range []bool{true, false} {
		var phases []transfer.Phase
		s := newFixture(t, fault{call: "patch podvolumebackups", ordinal: 4, err: io.ErrUnexpectedEOF, committed: committed})
		s.OnUpdate = func(_ *velerov1.PodVolumeBackup, _, after transfer.State) { phases = append(phases, after.Phase) }
		cached := s.object
		s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { // is one call behind
			defer func() { cached = s.object }()
			return cached.DeepCopy(), true
		}
		s.run(t)
		require.Regexp(t, `^\[Normal Completed Moved 10 bytes in \w+\]$`, s.sent(), "written: %t", committed)
		require.Equal(t, []transfer.Phase{transfer.Accepted, transfer.Prepared, transfer.InProgress, transfer.Completed}, phases)
	}
}

// An error does not prove the end of a pod: neither the mover nor the source counts as deleted (T6).
func TestAnErrorIsNotTheEndOfAPod(t *testing.T) {
	for phase, cached := range map[velerov1.PodVolumeBackupPhase]*corev1.Pod{"InProgress": sourcePod(), "Accepted": nil} {
		s := newRunning()
		s.object.Status.Phase, s.pods["app/db"] = phase, cached
		s.failing = apierrors.NewForbidden(corev1.Resource("pods"), "db", errors.New("no rights"))
		s.stepFails(t, "no rights")
		require.Equal(t, "1", s.object.ResourceVersion, "nothing is written")
		require.Empty(t, s.kube.Actions(), "nothing is created and nothing is deleted")
	}
}

// fixture is a PodVolumeBackup on the agent of its node, with an API server that can fail. Its kubelet acts when nothing
// else does. The pod caches always match the API server.
type fixture struct {
	*single[*velerov1.PodVolumeBackup]
	fault fault
	calls map[string]int // by verb and resource
}

// fault is one call that fails.
type fault struct {
	call      string // verb and resource
	ordinal   int    // number of the call that fails
	err       error
	committed bool // the call took effect, only its answer was lost
}

func newFixture(t *testing.T, of fault) *fixture {
	t.Helper()
	f := &fixture{single: newBackup(), fault: of, calls: map[string]int{}}
	require.NoError(t, f.kube.Tracker().Add(sourcePod()))
	f.kube.PrependReactor("*", "*", f.react)
	f.Pods, f.Client, f.Exposer.Source = f, f, f.Pod
	f.LivePod = func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
		return f.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	return f
}

// fails counts a call and reports whether it is the one that fails.
func (f *fixture) fails(call string) bool {
	f.calls[call]++
	return f.fault.call == call && f.fault.ordinal == f.calls[call]
}

func (f *fixture) react(action clienttesting.Action) (bool, runtime.Object, error) {
	call := action.GetVerb() + " " + action.GetResource().Resource + "/" + action.GetSubresource()
	return f.fails(strings.TrimSuffix(call, "/")), nil, f.fault.err
}

// Patch fails if it is the call that fails, before or after it took effect.
func (f *fixture) Patch(ctx context.Context, name string, pt types.PatchType, patch []byte, opts metav1.PatchOptions, sub ...string) (*velerov1.PodVolumeBackup, error) {
	wrong := f.fails("patch podvolumebackups")
	if wrong && !f.fault.committed {
		return nil, f.fault.err
	}
	written, err := f.single.Patch(ctx, name, pt, patch, opts, sub...)
	if wrong {
		return nil, f.fault.err
	}
	return written, err
}

func (f *fixture) Mover(string) *corev1.Pod { return f.Pod(testKey) }

func (f *fixture) Pod(key string) *corev1.Pod {
	namespace, name, _ := strings.Cut(key, "/")
	object, err := f.kube.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), namespace, name)
	if err != nil {
		return nil
	}
	return object.(*corev1.Pod).DeepCopy()
}

// kubelet advances the mover by one phase, as far as its resource allows.
func (f *fixture) kubelet(t *testing.T) {
	t.Helper()
	pod := f.Mover(testKey)
	if pod == nil {
		return
	}
	switch {
	case pod.Spec.NodeName == "":
		pod.UID, pod.Spec.NodeName, pod.Status.Phase = "mover-uid", testNode, corev1.PodRunning
	case f.object.Status.Phase == velerov1.PodVolumeBackupPhaseInProgress && pod.Status.Phase == corev1.PodRunning:
		pod.Status.Phase = corev1.PodSucceeded
		pod.Status.ContainerStatuses = ended(0, `{"snapshotID":"snap","source":{"byPath":"/b1-uid"},"totalBytes":10}`)
	}
	require.NoError(t, f.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "velero"))
}

// prepare reconciles until the mover is ready to start.
func (f *fixture) prepare(t *testing.T) {
	t.Helper()
	f.steps(t, 2) // accept it, create the mover
	f.kubelet(t)
	f.becomes(t, transfer.Prepared)
}

// run reconciles until the transfer is terminal and cleaned up.
func (f *fixture) run(t *testing.T) {
	t.Helper()
	const most = 40
	for range most {
		_, err := f.Reconcile(t.Context(), testKey)
		t.Log("step:", err)
		f.kubelet(t)
		if f.object.Status.Phase == velerov1.PodVolumeBackupPhaseCompleted && len(f.object.Finalizers) == 0 {
			return
		}
		f.clock.SetTime(f.clock.Now().Add(time.Second))
	}
	require.Failf(t, "did not converge", "after %d steps: %+v, mover left: %v", most, f.object.Status, f.Mover(testKey) != nil)
}

func TestAnAgentKnowsWhatItHasCreatedAndDeleted(t *testing.T) {
	var local localState
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "claim"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod"}}
	both := exposer.Existing{Pod: pod, Claims: []*corev1.PersistentVolumeClaim{claim}}
	require.False(t, local.isDeleting("d1", both))
	// A rebind deletes the restore claim while the cache shows the mover of an earlier attempt, which is deleted. When the cache
	// shows the mover that ran, the rebind deletes that too: the claim waits for it.
	local.markRebind("d1", exposer.Existing{Claims: both.Claims}, "")
	require.True(t, local.isDeleting("d1", exposer.Existing{Claims: both.Claims}))
	require.False(t, local.isDeleting("d1", both))
	local.markRebind("d1", both, "")
	require.True(t, local.isDeleting("d1", both))
	require.True(t, local.isDeleting("d1", exposer.Existing{Pod: pod}))
	require.False(t, local.isDeleting("d1", exposer.Existing{}))
	require.False(t, local.isDeleting("d1", exposer.Existing{Claims: []*corev1.PersistentVolumeClaim{claim, {ObjectMeta: metav1.ObjectMeta{UID: "other"}}}}))
	forced := exposer.Existing{Pod: pod, Force: true}
	require.NotNil(t, local.toRemove("d1", forced).Pod)
	local.markDeleted("d1", forced, true)
	require.Nil(t, local.toRemove("d1", forced).Pod)
	local.markDeleted("d1", exposer.Existing{Pod: pod}, false)
	mover, claims := local.undeleted("d1", []string{"c", "other"})
	require.False(t, mover, "its deletion is known")
	require.Equal(t, []string{"other"}, claims)
	local.markDeleted("d2", both, false)
	mover, claims = local.undeleted("d2", []string{"c"})
	require.True(t, mover, "no event reports the deletion of what no cache has")
	require.Equal(t, []string{"c"}, claims)
	local.exposed("b1", 0, "its claim is being deleted", nil)
	require.Zero(t, local.loss("b1", 0, nil), "none was created")
	local.exposed("b1", 0, "", nil)
	require.Zero(t, local.loss("b1", 0, &corev1.Pod{}))
	require.Equal(t, transfer.Vanished(), local.loss("b1", 0, nil))
	first := transfer.Loss{Reason: objects.LostEvicted}
	local.markLost("b1", 0, first)
	local.markLost("b1", 0, transfer.Vanished())
	require.Equal(t, first, local.loss("b1", 0, nil))
	local.identify("b1", "uid")
	require.Equal(t, types.UID("uid"), local.forget("b1"))
	require.Empty(t, local.forget("b1"))
}
