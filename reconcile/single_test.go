package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

const (
	testKey  = "velero/b1"
	testNode = "n1"
)

// single is one resource of any kind, reconciled by the coordinator on testNode. Its caches contain what the test adds.
type single[T transfer.Object] struct {
	*TransferReconciler[T]
	object   T
	kube     *fake.Clientset
	clock    *testingclock.FakeClock
	events   *record.FakeRecorder
	pods     map[string]*corev1.Pod // cached, by key: movers, pods of this node and those that wait for a restore
	live     map[string]*corev1.Pod // on the API server
	failing  error                  // the error of each GET of a pod; nil for none
	gets     int                    // of pods
	target   watchedClaim
	attached watchedAttachment                        // of the restored volume
	restored watchedClaim                             // into which the mover restored
	claims   map[string]*corev1.PersistentVolumeClaim // created for movers, by key
	classes  map[string]*storagev1.StorageClass
	reports  []*corev1.Event // about the resource
	lists    int             // of these
	unlisted error           // the answer to each
	siblings []T
	enqueued int  // times
	recorded bool // no cache has the mover
	stale    bool // a cache of transfers is
}

func newSingle[T transfer.Object](kind transfer.Kind[T], object T) *single[T] {
	s := &single[T]{
		object: object, kube: fake.NewClientset(), events: record.NewFakeRecorder(100), clock: testingclock.NewFakeClock(time.Unix(1_800_000_000, 0)),
		pods: map[string]*corev1.Pod{}, live: map[string]*corev1.Pod{}, classes: map[string]*storagev1.StorageClass{},
	}
	object.SetNamespace("velero")
	object.SetName("b1")
	object.SetUID("b1-uid")
	object.SetResourceVersion("1")
	object.SetCreationTimestamp(metav1.NewTime(s.clock.Now()))
	s.TransferReconciler = &TransferReconciler[T]{
		Kind: kind,
		Dependencies: Dependencies{
			Agent:  transfer.Agent{Node: testNode, Fleet: coordinatorFleet{}},
			Limits: transfer.DefaultLimits(), ResourceTimeout: time.Minute,
			Pods: s, Stale: func() bool { return s.stale }, Claims: s, Targets: &s.target, Attached: &s.attached, Restored: &s.restored, LivePod: s.livePod, LiveEvents: s.liveEvents,
			StorageClass: func(name string) *storagev1.StorageClass { return s.classes[name] },
			Exposer: &exposer.Exposer{
				Client: s.kube, Templates: map[corev1.OSName]objects.Template{corev1.Linux: {}},
				Paths: exposer.HostPaths{Client: s.kube, PodsDir: "/pods"}, Source: s.Pod,
			},
			NodeSlots: capacity.NewNodeSlots(capacity.Same(1)), Preparing: capacity.FixedPreparation(math.MaxInt), LearnSlots: func(context.Context, string) error { return nil }, Recorder: s.events, Clock: s.clock,
			MoverLog: func(context.Context, string, []byte) {}, Metrics: metrics.New(prometheus.NewRegistry(), "test", testNode),
		},
		Cached:   func(string) (T, bool) { return kind.Copy(s.object), true },
		Record:   func(T) {}, // the cache is never late
		Client:   s,
		Enqueue:  func(string) { s.enqueued++ },
		Siblings: func(T) []T { return s.siblings },
		OnUpdate: func(T, transfer.State, transfer.State) {},
	}
	return s
}

func (s *single[T]) livePod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	s.gets++
	if pod := s.live[namespace+"/"+name]; pod != nil || s.failing != nil {
		return pod.DeepCopy(), s.failing
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
}

func (s *single[T]) liveEvents(_ context.Context, about types.UID) ([]*corev1.Event, error) {
	s.lists++
	if s.unlisted != nil || about != s.object.GetUID() {
		return nil, s.unlisted
	}
	return s.reports, nil
}

// says adds an Event of the mover.
func (s *single[T]) says(reason, message string, at time.Time) {
	s.reports = append(s.reports, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at)},
		Reason:     reason, Message: message, LastTimestamp: metav1.NewTime(at),
	})
}

func (s *single[T]) Mover(key string) *corev1.Pod                   { return s.pods[key] }
func (s *single[T]) Recorded(string) bool                           { return s.recorded }
func (s *single[T]) Pod(key string) *corev1.Pod                     { return s.pods[key] }
func (s *single[T]) Claim(key string) *corev1.PersistentVolumeClaim { return s.claims[key] }

// watchedClaim is the watch of one claim. Forget ends it.
type watchedClaim struct {
	watched types.NamespacedName
	enqueue func()
	claim   *corev1.PersistentVolumeClaim
	known   bool // the watch has shown whether the claim exists
}

func (w *watchedClaim) Watch(_ types.UID, claim types.NamespacedName, enqueue func()) {
	w.watched, w.enqueue = claim, enqueue
}
func (w *watchedClaim) Forget(types.UID) { w.watched, w.known = types.NamespacedName{}, false }

func (w *watchedClaim) Claim(types.UID) (claim *corev1.PersistentVolumeClaim, known bool) {
	return w.claim, w.known
}

type watchedAttachment struct {
	watchedClaim
	detached bool
}

func (w *watchedAttachment) Detached(types.UID) (detached, watched bool) {
	return w.detached, w.watched != types.NamespacedName{}
}

// Patch applies a JSON merge patch as the API server does. It refuses one of another resourceVersion.
func (s *single[T]) Patch(_ context.Context, name string, _ types.PatchType, patch []byte, _ metav1.PatchOptions, _ ...string) (T, error) {
	var none T
	original, unreadable := json.Marshal(s.object)
	merged, wrong := jsonpatch.MergePatch(original, patch)
	written := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
	if err := errors.Join(unreadable, wrong, json.Unmarshal(merged, written)); err != nil {
		return none, err
	}
	if written.GetResourceVersion() != s.object.GetResourceVersion() {
		return none, apierrors.NewConflict(schema.GroupResource{Resource: s.Kind.Name}, name, errors.New("stale"))
	}
	version, err := strconv.Atoi(written.GetResourceVersion())
	if err != nil {
		return none, err
	}
	written.SetResourceVersion(strconv.Itoa(version + 1))
	s.object = written
	return s.Kind.Copy(written), nil
}

// step reconciles once. It returns the delay until the next step.
func (s *single[T]) step(t *testing.T) time.Duration {
	t.Helper()
	after, err := s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	return after
}

// becomes reconciles once, after which the resource has that phase.
func (s *single[T]) becomes(t *testing.T, phase transfer.Phase, why ...any) {
	t.Helper()
	s.step(t)
	require.Equal(t, phase, s.state().Phase, "%v: %s", why, s.state().Message)
}

// sent returns the Events since its last call.
func (s *single[T]) sent() (all []string) {
	for len(s.events.Events) > 0 {
		all = append(all, <-s.events.Events)
	}
	return all
}

func (s *single[T]) state() transfer.State { return s.Kind.Get(s.object) }

// followerFleet is a fleet of which this agent is not the coordinator.
type followerFleet struct{}

func (followerFleet) IsCoordinator() bool     { return false }
func (followerFleet) Ready(string) bool       { return false }
func (followerFleet) Unavailable(string) bool { return false }
func (followerFleet) RunsVelero(string) bool  { return false }
func (followerFleet) Lost(string) bool        { return false }

// coordinatorFleet is a fleet of which this agent is the coordinator. One node each has no agent, has Velero's, or is lost.
type coordinatorFleet struct{ absent, veleros, lost string }

func (coordinatorFleet) IsCoordinator() bool            { return true }
func (c coordinatorFleet) Ready(node string) bool       { return !c.Unavailable(node) && !c.RunsVelero(node) }
func (c coordinatorFleet) Unavailable(node string) bool { return node == c.absent || node == c.lost }
func (c coordinatorFleet) RunsVelero(node string) bool  { return node == c.veleros }
func (c coordinatorFleet) Lost(node string) bool        { return node == c.lost }
