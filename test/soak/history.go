package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// maxViolations is how many broken promises are printed.
const maxViolations = 20

// history keeps what becomes of transfers and movers, event by event, and which promises were broken.
type history struct {
	counts    *counts
	incidents *incidents

	lock       sync.Mutex
	changed    chan struct{} // closed and replaced at every event
	transfers  map[types.UID]*transferState
	movers     map[types.UID]*mover
	slots      []slotUse
	violations []string
}

// transferState is that of a transfer.
type transferState struct {
	kind  testenv.Kind
	last  *testenv.Transfer
	owned bool // an agent had its finalizer there
	gone  bool
	at    time.Time // when it was seen last
}

// mover is a pod of an agent.
type mover struct {
	name, owner, node, acceptor, class string
	phase                              corev1.PodPhase
	preempted, succeeded, gone         bool
}

// slotUse is a transfer that needs a slot of a node, or does not, from a point in the history of the cluster on.
type slotUse struct {
	version uint64
	uid     types.UID
	node    string // "" if it needs none
}

// openHistory begins one, which ends with the context.
func openHistory(ctx context.Context, w *fixture.Env, t *counts, h *incidents) (*history, error) {
	j := &history{counts: t, incidents: h, changed: make(chan struct{})}
	j.reset()
	client, err := dynamic.NewForConfig(w.Plane.Admin())
	if err != nil {
		return nil, err
	}
	for _, kind := range testenv.Kinds() {
		err = errors.Join(err, j.follow(ctx, client, w.Namespace, kind.Resource(), func(event watch.Event) error { return j.seeTransfer(kind, event) }))
	}
	return j, errors.Join(err, j.follow(ctx, client, w.Namespace, corev1.SchemeGroupVersion.WithResource("pods"), j.seePod))
}

// follow reads a resource from now on; a watch that breaks off goes on where it ended.
func (j *history) follow(
	ctx context.Context, client dynamic.Interface, namespace string, resource schema.GroupVersionResource, see func(watch.Event) error,
) error {
	objects := client.Resource(resource).Namespace(namespace)
	list, err := objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list %s: %w", resource.Resource, err)
	}
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{WatchFuncWithContext: objects.Watch})
	if err != nil {
		return fmt.Errorf("watch %s: %w", resource.Resource, err)
	}
	go func() {
		for event := range watcher.ResultChan() {
			if err := see(event); err != nil {
				j.violate("history cannot read %s: %v", resource.Resource, err)
				return
			}
		}
		if ctx.Err() == nil {
			j.violate("history of %s ended", resource.Resource)
		}
	}()
	return nil
}

func (j *history) seeTransfer(kind testenv.Kind, event watch.Event) error {
	object, ok := event.Object.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("it says %s: %v", event.Type, event.Object)
	}
	transfer, err := testenv.View(object)
	if err != nil {
		return err
	}
	version, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		return err
	}
	j.lock.Lock()
	defer j.lock.Unlock()
	defer j.notify()
	seen, ok := j.transfers[transfer.UID]
	if !ok {
		seen = &transferState{kind: kind, last: transfer}
		j.transfers[transfer.UID] = seen
	}
	before, after := seen.last.Status.Phase, transfer.Status.Phase
	if before.Ended() && after != before {
		j.addViolation("%s %s was %s and became %s", kind, transfer.Name, before, after)
	}
	seen.last, seen.owned, seen.gone = transfer, seen.owned || len(transfer.Finalizers) > 0, event.Type == watch.Deleted
	seen.at = time.Now()
	at := slotUse{version: version, uid: transfer.UID}
	if !seen.gone && (after == testenv.InProgress || after == testenv.Canceling) && transfer.Annotations[api.AnnotationMoved] == "" {
		at.node = transfer.Node()
	}
	j.slots = append(j.slots, at)
	return nil
}

func (j *history) seePod(event watch.Event) error {
	object, ok := event.Object.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("it says %s: %v", event.Type, event.Object)
	}
	owner := object.GetLabels()[api.LabelOwnerUID]
	if owner == "" {
		return nil
	}
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pod); err != nil {
		return err
	}
	j.lock.Lock()
	defer j.lock.Unlock()
	defer j.notify()
	was := j.movers[pod.UID]
	is := &mover{
		name: pod.Name, owner: owner, node: pod.Spec.NodeName, acceptor: pod.Labels[api.LabelAcceptor], class: pod.Spec.PriorityClassName,
		phase: pod.Status.Phase, succeeded: succeeded(pod), gone: event.Type == watch.Deleted,
		preempted: slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonPreemptionByScheduler
		}),
	}
	if is.preempted && (was == nil || !was.preempted) {
		j.counts.add(preempted)
		j.incidents.add(pod.Name, preempted)
	}
	j.movers[pod.UID] = is
	if was == nil {
		j.onlyOne(owner)
	}
	return nil
}

// succeeded reports whether the container of a mover ended well. Its pod may have Failed all the same: it was evicted at
// that moment.
func succeeded(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Terminated != nil && c.State.Terminated.ExitCode == 0
	})
}

// alive reports whether a mover can do something.
func (m *mover) alive() bool {
	return !m.gone && m.phase != corev1.PodSucceeded && m.phase != corev1.PodFailed
}

// onlyOne wants a transfer to have one live mover at most.
func (j *history) onlyOne(owner string) {
	var names []string
	for _, m := range j.movers {
		if m.owner == owner && m.alive() {
			names = append(names, m.name)
		}
	}
	if len(names) > 1 {
		j.addViolation("transfer %s has %d live movers: %s", owner, len(names), strings.Join(names, ", "))
	}
}

// notify wakes who waits for an event.
func (j *history) notify() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// addViolation keeps a broken promise.
func (j *history) addViolation(format string, description ...any) {
	j.violations = append(j.violations, fmt.Sprintf(format, description...))
}

func (j *history) violate(format string, description ...any) {
	j.lock.Lock()
	defer j.lock.Unlock()
	j.addViolation(format, description...)
}

func (j *history) isViolated() bool {
	j.lock.Lock()
	defer j.lock.Unlock()
	return len(j.violations) > 0
}

// err has the broken promises.
func (j *history) err() error {
	j.lock.Lock()
	defer j.lock.Unlock()
	if len(j.violations) == 0 {
		return nil
	}
	reported := j.violations[:min(len(j.violations), maxViolations)]
	return fmt.Errorf("%d promises are broken:\n  %s", len(j.violations), strings.Join(reported, "\n  "))
}

// until returns the life of a transfer once done says so of it. The error has what was seen last.
func (j *history) until(ctx context.Context, uid types.UID, done func(transferState) bool) (transferState, error) {
	for {
		j.lock.Lock()
		seen, changed := transferState{}, j.changed
		if known := j.transfers[uid]; known != nil {
			seen = *known
		}
		j.lock.Unlock()
		if seen.last != nil && done(seen) {
			return seen, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return seen, context.Cause(ctx)
		}
	}
}

// liveMovers are those that have a node.
func (j *history) liveMovers() []mover {
	j.lock.Lock()
	defer j.lock.Unlock()
	var all []mover
	for _, m := range j.movers {
		if m.alive() && m.node != "" {
			all = append(all, *m)
		}
	}
	slices.SortFunc(all, func(a, b mover) int { return strings.Compare(a.name, b.name) })
	return all
}

// reset begins a new page: everything that was there is over.
func (j *history) reset() {
	j.lock.Lock()
	defer j.lock.Unlock()
	j.transfers, j.movers, j.slots = map[types.UID]*transferState{}, map[types.UID]*mover{}, nil
}
