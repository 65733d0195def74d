package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// maxSeenBytes bounds the bytes of the last observed object in an error.
const maxSeenBytes = 4000

// Patience bounds the waits of tests. It only guards against hanging. Tests measure durations, and end at once on a wrong terminal state.
const Patience = 10 * time.Minute

// Watcher is a client that can watch.
type Watcher interface {
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Client is a client that can list and watch; L is the list type.
type Client[L runtime.Object] interface {
	Watcher
	List(ctx context.Context, options metav1.ListOptions) (L, error)
}

// Named selects the one object with that name in a list or watch.
func Named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "metadata.name=" + name}
}

// Wait returns the first selected object that done accepts. The error contains the last observed object. A deleted
// object is an error, unless options select several. An object for which a function of terminal returns an error is
// one too, because it can never reach the wanted state.
func Wait[T runtime.Object](ctx context.Context, client Watcher, options metav1.ListOptions, done func(T) bool, terminal ...func(T) error) (T, error) {
	var none T
	what := fmt.Sprintf("%s %s%s", reflect.TypeFor[T]().Elem().Name(), options.FieldSelector, options.LabelSelector)
	watcher, err := client.Watch(ctx, options)
	if err != nil {
		return none, fmt.Errorf("watch %s: %w", what, err)
	}
	defer watcher.Stop()
	seen := "nothing was seen"
	for {
		select {
		case <-ctx.Done():
			return none, fmt.Errorf("wait for %s: %w; %s", what, context.Cause(ctx), seen)
		case event, open := <-watcher.ResultChan():
			if !open {
				return none, fmt.Errorf("wait for %s: the watch ended; %s", what, seen)
			}
			object, ok := event.Object.(T)
			if !ok {
				return none, fmt.Errorf("watch %s: %w", what, apierrors.FromObject(event.Object))
			}
			seen = "last seen: " + describe(object)
			if event.Type == watch.Deleted {
				if options.FieldSelector != "" {
					return none, fmt.Errorf("wait for %s: it was deleted; %s", what, seen)
				}
				continue
			}
			if done(object) {
				return object, nil
			}
			for _, why := range terminal {
				if err := why(object); err != nil {
					return none, fmt.Errorf("wait for %s: %w; %s", what, err, seen)
				}
			}
		}
	}
}

// describe returns the object as JSON, truncated to maxSeenBytes.
func describe(object runtime.Object) string {
	text, err := json.Marshal(object)
	if err != nil {
		return err.Error()
	}
	return string(text[:min(len(text), maxSeenBytes)])
}

// WaitGone waits until every selected object of now is deleted. Functions of belongs restrict the selection.
func WaitGone[L runtime.Object](ctx context.Context, client Client[L], options metav1.ListOptions, belongs ...func(runtime.Object) bool) error {
	list, err := client.List(ctx, options)
	if err != nil {
		return fmt.Errorf("list %T: %w", list, err)
	}
	left := map[string]bool{}
	err = apimeta.EachListItem(list, func(object runtime.Object) error {
		if slices.ContainsFunc(belongs, func(is func(runtime.Object) bool) bool { return !is(object) }) {
			return nil
		}
		name, err := apimeta.NewAccessor().Name(object)
		left[name] = true
		return err
	})
	if err != nil || len(left) == 0 {
		return err
	}
	if options.ResourceVersion, err = apimeta.NewAccessor().ResourceVersion(list); err != nil {
		return err
	}
	watcher, err := client.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watch %T: %w", list, err)
	}
	defer watcher.Stop()
	seen := "nothing changed"
	for len(left) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the end of %v (%T): %w; %s", slices.Sorted(maps.Keys(left)), list, context.Cause(ctx), seen)
		case event, open := <-watcher.ResultChan():
			if !open || event.Type == watch.Error {
				return fmt.Errorf("wait for the end of %v (%T): the watch ended: %v; %s", slices.Sorted(maps.Keys(left)), list, event.Object, seen)
			}
			if event.Type == watch.Deleted {
				name, _ := apimeta.NewAccessor().Name(event.Object) // it is one of the list
				delete(left, name)
			}
			seen = "last seen: " + describe(event.Object)
		}
	}
	return nil
}

// WaitPod returns the pod after done accepts it. A terminal pod that done rejects is an error at once.
func (e *Env) WaitPod(ctx context.Context, namespace, name string, done func(*corev1.Pod) bool) (*corev1.Pod, error) {
	return Wait(ctx, e.Kube.CoreV1().Pods(namespace), Named(name), done, podEnded)
}

// podEnded returns an error for a terminal pod.
func podEnded(pod *corev1.Pod) error {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return fmt.Errorf("it has ended as %s", pod.Status.Phase)
	}
	return nil
}

// WaitPodGone waits until the pod is deleted.
func (e *Env) WaitPodGone(ctx context.Context, namespace, name string) error {
	return WaitGone(ctx, e.Kube.CoreV1().Pods(namespace), Named(name))
}

// NodeAgentPod returns the DaemonSet's pod on node after done accepts it.
func (e *Env) NodeAgentPod(ctx context.Context, node string, done func(*corev1.Pod) bool) (*corev1.Pod, error) {
	agents := metav1.ListOptions{LabelSelector: "role=node-agent", FieldSelector: "spec.nodeName=" + node}
	return Wait(ctx, e.Kube.CoreV1().Pods(e.Namespace), agents, done)
}

// Ready reports whether the kubelet reports the pod as Ready.
func Ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// WaitsForRestore reports whether a restored pod waits for its volumes.
func WaitsForRestore(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == WaitContainer && c.State.Running != nil
	})
}

// Running reports whether the containers of the pod have started and not all of them have ended.
func Running(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }

// WaitEvent returns a Kubernetes Event of Velero's namespace after done accepts it.
func (e *Env) WaitEvent(ctx context.Context, done func(*corev1.Event) bool) (*corev1.Event, error) {
	return Wait(ctx, e.Kube.CoreV1().Events(e.Namespace), metav1.ListOptions{}, done)
}

// Bound reports whether a claim is bound to a volume.
func Bound(claim *corev1.PersistentVolumeClaim) bool { return claim.Status.Phase == corev1.ClaimBound }

// ReadyToUse reports whether a snapshot is bound to a content and ready for a restore.
func ReadyToUse(snapshot *snapshotv1.VolumeSnapshot) bool {
	return snapshot.Status != nil && ptr.Deref(snapshot.Status.ReadyToUse, false) && snapshot.Status.BoundVolumeSnapshotContentName != nil
}

// WaitClaim returns the claim after done accepts it, for example Bound.
func (e *Env) WaitClaim(ctx context.Context, namespace, name string, done func(*corev1.PersistentVolumeClaim) bool) (*corev1.PersistentVolumeClaim, error) {
	return Wait(ctx, e.Kube.CoreV1().PersistentVolumeClaims(namespace), Named(name), done)
}

// WaitClaimGone waits until the claim is deleted.
func (e *Env) WaitClaimGone(ctx context.Context, namespace, name string) error {
	return WaitGone(ctx, e.Kube.CoreV1().PersistentVolumeClaims(namespace), Named(name))
}

// WaitSnapshot returns the VolumeSnapshot after done accepts it, for example ReadyToUse.
func (e *Env) WaitSnapshot(ctx context.Context, namespace, name string, done func(*snapshotv1.VolumeSnapshot) bool) (*snapshotv1.VolumeSnapshot, error) {
	return Wait(ctx, e.Snapshots.SnapshotV1().VolumeSnapshots(namespace), Named(name), done)
}

// Handle returns the driver's name of the snapshot behind a VolumeSnapshot after the driver has reported it, as
// Velero's server waits for it before it creates a DataUpload. It also returns the VolumeSnapshot as bound.
func (e *Env) Handle(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot) (*snapshotv1.VolumeSnapshot, string, error) {
	bound, err := e.WaitSnapshot(ctx, snapshot.Namespace, snapshot.Name, func(s *snapshotv1.VolumeSnapshot) bool {
		return s.Status != nil && s.Status.BoundVolumeSnapshotContentName != nil
	})
	if err != nil {
		return nil, "", err
	}
	named := Named(*bound.Status.BoundVolumeSnapshotContentName)
	content, err := Wait(ctx, e.Snapshots.SnapshotV1().VolumeSnapshotContents(), named, func(c *snapshotv1.VolumeSnapshotContent) bool {
		return c.Status != nil && c.Status.SnapshotHandle != nil
	})
	if err != nil {
		return nil, "", err
	}
	return bound, *content.Status.SnapshotHandle, nil
}

// Transition is one change of a transfer's phase, or its first observation.
type Transition struct {
	Name string
	Node string // the node of the transfer, if already known
	To   Phase
	At   time.Time // when this process observed it
}

// Recorder records the phase transitions of all transfers in a namespace, in the API server's order for each kind.
type Recorder struct {
	mu          sync.Mutex
	transitions []Transition
	phases      map[string]Phase // of each transfer, the last one
	changed     chan struct{}    // closed and replaced at each transition
}

// Record starts a recorder that ends with ctx. Existing transfers count as first observations.
func (e *Env) Record(ctx context.Context) (*Recorder, error) {
	r := &Recorder{phases: map[string]Phase{}, changed: make(chan struct{})}
	var synced []cache.InformerSynced
	for _, kind := range Kinds() {
		informer := dynamicinformer.NewFilteredDynamicInformer(e.dynamic, kind.Resource(), e.Namespace, 0, nil, nil).Informer()
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: r.see, UpdateFunc: func(_, now any) { r.see(now) },
		})
		if err != nil {
			return nil, fmt.Errorf("watch %ss: %w", kind, err)
		}
		go informer.RunWithContext(ctx)
		synced = append(synced, registration.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil, fmt.Errorf("list transfers: %w", context.Cause(ctx))
	}
	return r, nil
}

// see records a change of the phase. The API server validates all fields of a Transfer.
func (r *Recorder) see(object any) {
	resource, ok := object.(*unstructured.Unstructured)
	if !ok {
		return
	}
	transfer, err := View(resource)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, known := r.phases[transfer.Name]; known && last == transfer.Status.Phase {
		return
	}
	r.phases[transfer.Name] = transfer.Status.Phase
	r.transitions = append(r.transitions, Transition{
		Name: transfer.Name, Node: transfer.Node(), To: transfer.Status.Phase, At: time.Now(),
	})
	close(r.changed)
	r.changed = make(chan struct{})
}

// Phases returns the observed phases of the transfer with that name, including the first one.
func (r *Recorder) Phases(name string) []Phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	var phases []Phase
	for _, transition := range r.transitions {
		if transition.Name == name {
			phases = append(phases, transition.To)
		}
	}
	return phases
}

// Until returns the transitions after done accepts them. The error contains the newest ones.
func (r *Recorder) Until(ctx context.Context, done func([]Transition) bool) ([]Transition, error) {
	for {
		r.mu.Lock()
		all, changed := slices.Clone(r.transitions), r.changed
		r.mu.Unlock()
		if done(all) {
			return all, nil
		}
		select {
		case <-ctx.Done():
			newest := all[max(0, len(all)-10):]
			return all, fmt.Errorf("wait for transitions: %w; the newest of %d: %+v", context.Cause(ctx), len(all), newest)
		case <-changed:
		}
	}
}
