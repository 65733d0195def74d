package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/test/testenv"
)

func (n *Node) watchPods(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.options.Name).String()
	}))
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { n.seen(ctx, object) },
		UpdateFunc: func(old, object any) { n.changed(ctx, old, object) },
		DeleteFunc: n.lost,
	})
	if err != nil {
		return fmt.Errorf("watch pods of node %s: %w", n.options.Name, err)
	}
	n.running.Go(func() { informer.RunWithContext(ctx) })
	return nil
}

// seen starts a new pod and passes a deletion on.
func (n *Node) seen(ctx context.Context, object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	run := n.pods[pod.UID]
	if run == nil {
		runCtx, deleted := context.WithCancelCause(ctx)
		run = &podRun{pod: pod, gone: deleted, deleted: make(chan struct{}), evicted: make(chan struct{})}
		n.pods[pod.UID] = run
		defer n.running.Go(func() { // after it has observed the deletion
			n.run(runCtx, run)
			if errors.Is(context.Cause(runCtx), errForced) {
				// The API server deletes the object itself, but not if the client went away after it had marked it.
				report(ctx, klog.FromContext(ctx), "Delete pod", n.drop(ctx, run.pod))
			}
		})
	}
	if pod.DeletionTimestamp != nil {
		run.delete(pod)
	}
}

// changed calls seen. It first calls lost if an interrupted watch missed that another pod got the name.
func (n *Node) changed(ctx context.Context, old, object any) {
	before, isPod := old.(*corev1.Pod)
	if now, ok := object.(*corev1.Pod); ok && isPod && now.UID != before.UID {
		n.lost(before)
	}
	n.seen(ctx, object)
}

func (n *Node) lost(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	if run := n.pods[pod.UID]; run != nil {
		run.gone(errGone)
		delete(n.pods, pod.UID)
	}
}

// run plays the life of a pod. Its files are removed before its object, or after an object that was deleted by force.
// When the node stops, the files stay, as after a power loss.
func (n *Node) run(ctx context.Context, run *podRun) {
	logger := klog.FromContext(ctx).WithValues("node", n.options.Name, "pod", klog.KObj(run.pod))
	defer n.logs.forget(run.pod)
	if end := n.live(ctx, logger, run); end != nil {
		report(ctx, logger, "Post end of pod", n.post(ctx, run.pod, *end))
	}
	n.close(run)
	select {
	case <-ctx.Done():
	case <-run.deleted:
	}
	if cause := context.Cause(ctx); ctx.Err() != nil && !errors.Is(cause, errGone) && !errors.Is(cause, errForced) {
		return
	}
	if err := os.RemoveAll(n.podDir(run.pod)); err != nil {
		logger.Error(err, "Remove directory of pod")
	}
	if ctx.Err() == nil {
		report(ctx, logger, "Delete pod", n.drop(ctx, run.pod))
	}
}

// report logs an error. It ignores errors because the pod is deleted or replaced, or because the node stops.
func report(ctx context.Context, logger klog.Logger, what string, err error) {
	if err == nil || ctx.Err() != nil || apierrors.IsNotFound(err) || isAnothers(err) {
		return
	}
	logger.Error(err, what)
}

// isAnothers reports whether the UID did not match: a conflict for a deletion, an invalid change for a patch.
func isAnothers(err error) bool {
	status := apierrors.APIStatus(nil)
	if apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return apierrors.IsConflict(err)
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// live runs a pod and returns its final status; nil if there is nothing to report.
func (n *Node) live(ctx context.Context, logger klog.Logger, run *podRun) *corev1.PodStatus {
	pod := run.pod
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	if run.isDeleted() || ctx.Err() != nil { // a pod that must end starts no containers
		return run.verdict(neverStarted, ctx.Err())
	}
	fault := n.Faults.take(pod)
	if fault.Refused != nil {
		return &corev1.PodStatus{Phase: corev1.PodFailed, Reason: fault.Refused.Reason, Message: "Pod was rejected: " + fault.Refused.Message}
	}
	if fault.NeverStarts {
		return n.neverRuns(ctx, logger, run, creating)
	}
	start := time.NewTimer(n.options.StartDelay)
	defer start.Stop()
	if _, err := interruptible(ctx, run, start.C); err != nil {
		return run.verdict(neverStarted, err)
	}
	life, stop := run.life(ctx)
	defer stop(nil)
	volumes, err := n.prepare(life, pod)
	if life.Err() != nil {
		return run.verdict(neverStarted, context.Cause(life))
	}
	if err != nil {
		report(ctx, logger, "Prepare pod", err)
		return n.neverRuns(ctx, logger, run, creating)
	}
	if fault.Waiting != nil {
		return n.neverRuns(ctx, logger, run, *fault.Waiting)
	}
	return n.begin(ctx, logger, run, volumes)
}

// begin reports the containers as running and runs them.
func (n *Node) begin(ctx context.Context, logger klog.Logger, run *podRun, volumes map[string]string) *corev1.PodStatus {
	run.began = metav1.Now()
	if err := n.post(ctx, run.pod, started(run.pod, run.began)); err != nil {
		report(ctx, logger, "Post start of pod", err)
		return nil
	}
	return n.contain(ctx, run, volumes)
}

// prepare creates the volumes of a pod and runs its init containers. Both may wait without limit.
func (n *Node) prepare(ctx context.Context, pod *corev1.Pod) (volumes map[string]string, err error) {
	if volumes, err = n.makeVolumes(ctx, pod); err != nil {
		if ctx.Err() == nil {
			n.warning(ctx, pod, "FailedMount", err.Error())
		}
		return nil, err
	}
	return volumes, n.initialize(ctx, pod, volumes)
}

// warning sends an Event about a pod, as a kubelet does.
func (n *Node) warning(ctx context.Context, pod *corev1.Pod, reason, message string) {
	now := metav1.Now()
	_, err := n.client.CoreV1().Events(pod.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: pod.Name + ".", Namespace: pod.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		},
		Source: corev1.EventSource{Component: "kubelet", Host: n.options.Name}, Type: corev1.EventTypeWarning,
		Reason: reason, Message: message, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	report(ctx, klog.FromContext(ctx), "Send Event about pod", err)
}

// contain runs the containers until they end or are ended.
func (n *Node) contain(ctx context.Context, run *podRun, volumes map[string]string) *corev1.PodStatus {
	inside, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	host := Host{
		Node: n.options.Name, PodDir: n.podDir(run.pod), Log: n.logs.open(run.pod), Volumes: volumes, Beside: n.beside,
	}
	results := make(chan Result, 1)
	go func() { results <- n.options.Runner.Run(inside, run.pod, host) }()
	end, err := interruptible(ctx, run, results)
	if err != nil {
		stop(err)
		end = await(results, run.graceAfter(err))
	} else if len(run.pod.Spec.Containers) > 1 {
		report(ctx, klog.FromContext(ctx), "Post end of container", n.post(ctx, run.pod, outlived(run.pod, end, run.began)))
		_, err = interruptible[Result](ctx, run, nil)
	}
	return run.verdict(end, err)
}

// neverRuns posts why a pod does not start, until something else ends the pod.
func (n *Node) neverRuns(ctx context.Context, logger klog.Logger, run *podRun, why Waiting) *corev1.PodStatus {
	report(ctx, logger, "Post that pod waits", n.post(ctx, run.pod, waiting(run.pod, why)))
	n.warn(ctx, run.pod, why)
	_, err := interruptible[Result](ctx, run, nil)
	return run.verdict(neverStarted, err)
}

// drop removes the object of a deleted pod that has ended.
func (n *Node) drop(ctx context.Context, pod *corev1.Pod) error {
	return insist(ctx, func() error {
		return n.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
	})
}

func (n *Node) podDir(pod *corev1.Pod) string { return filepath.Join(n.PodsDir(), string(pod.UID)) }

// place is the scope of a watch that movers share. The watch ends with the node.
type place struct {
	node, namespace string
	kind            testenv.Kind
}

// follow returns channels for the start and the cancel of a transfer. As in Velero's mover, a cancel counts only as an
// update of an uncanceled resource in phase InProgress.
func (s *StandIn) follow(host Host, namespace string, role role) (started <-chan *testenv.Transfer, canceled <-chan struct{}, stop func(), err error) {
	starts, cancels := make(chan *testenv.Transfer, 1), make(chan struct{}, 1)
	see := func(object any) *testenv.Transfer {
		transfer := look(object, role.name)
		if transfer == nil || transfer.Status.Phase != testenv.InProgress {
			return nil
		}
		select {
		case starts <- transfer:
		default: // one signal is enough
		}
		return transfer
	}
	informer := s.cache(host, place{node: host.Node, namespace: namespace, kind: role.kind})
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { see(object) },
		UpdateFunc: func(old, object any) {
			now, before := see(object), look(old, role.name)
			if now == nil || before == nil || !now.Spec.Cancel || before.Spec.Cancel {
				return
			}
			select {
			case cancels <- struct{}{}:
			default: // one signal is enough
			}
		},
	})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("watch %ss: %w", role.kind, err)
	}
	return starts, cancels, func() { _ = informer.RemoveEventHandler(registration) }, nil
}

// look returns the transfer of a watch event if it has that name. Many movers share the watch.
func look(object any, name string) *testenv.Transfer {
	resource, ok := object.(*unstructured.Unstructured)
	if !ok || resource.GetName() != name {
		return nil
	}
	transfer, err := testenv.View(resource)
	if err != nil { // the API server validates all fields of a Transfer
		return nil
	}
	return transfer
}

// cache returns the watch of a kind in a namespace. The first mover there starts it.
func (s *StandIn) cache(host Host, here place) cache.SharedIndexInformer {
	s.lock.Lock()
	defer s.lock.Unlock()
	if informer := s.caches[here]; informer != nil {
		return informer
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(s.transfers, here.kind.Resource(), here.namespace, 0, nil, nil).Informer()
	s.caches[here] = informer
	host.Beside(func(ctx context.Context) {
		informer.RunWithContext(ctx)
		s.lock.Lock()
		defer s.lock.Unlock()
		delete(s.caches, here)
	})
	return informer
}

// eventSender sends the Events of a mover: one Event per reason, patched on each repetition.
type eventSender struct {
	client   kubernetes.Interface
	role     role
	transfer *testenv.Transfer
	host     Host
	said     map[string]*corev1.Event // by reason
}

// say sends an Event. A failure stops nothing, as in Velero's mover.
func (e *eventSender) say(ctx context.Context, reason, message string) {
	reported, err := e.send(ctx, reason, message)
	if err != nil {
		fmt.Fprintf(e.host.Log, "stand-in mover: send Event %s: %v\n", reason, err)
		return
	}
	e.said[reason] = reported
}

// fails returns the result of a mover whose data path failed.
func (e *eventSender) fails(why error) Result {
	fmt.Fprintln(e.host.Log, "stand-in mover:", why)
	return Result{ExitCode: 1, Message: fmt.Sprintf("Failed to run data path service for %s: %v", e.role.inResults(), why)}
}

func (e *eventSender) send(ctx context.Context, reason, message string) (*corev1.Event, error) {
	now := metav1.Now()
	events := e.client.CoreV1().Events(e.transfer.Namespace)
	if last := e.said[reason]; last != nil {
		patch, err := json.Marshal(map[string]any{"message": message, "count": last.Count + 1, "lastTimestamp": now})
		if err != nil {
			return nil, err
		}
		return events.Patch(ctx, last.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return events.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: e.transfer.Name + ".", Namespace: e.transfer.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: e.role.kind.Resource().GroupVersion().String(), Kind: string(e.role.kind),
			Namespace: e.transfer.Namespace, Name: e.transfer.Name, UID: e.transfer.UID,
		},
		Source: corev1.EventSource{Component: e.transfer.Name, Host: e.host.Node},
		Reason: reason, Message: message, Type: corev1.EventTypeNormal, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
}

// Fault replaces the normal run of a pod. Exactly one of its parts is set.
type Fault struct {
	Match func(*corev1.Pod) bool // nil: data movers
	Times int                    // number of pods it applies to; 0: all

	NeverStarts bool     // stays in ContainerCreating
	Waiting     *Waiting // its container never starts, for a reason
	Refused     *Waiting // the kubelet rejects it: OutOfcpu, UnexpectedAdmissionError, …
}

// Waiting is a reason and a message.
type Waiting struct{ Reason, Message string }

// Faults are the rules of a node. Tests add them while it runs.
type Faults struct {
	lock  sync.Mutex
	rules []*Fault
}

// Add appends a rule.
func (f *Faults) Add(fault Fault) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.rules = append(f.rules, &fault)
}

// take returns the fault for a pod; the zero Fault if no rule matches.
func (f *Faults) take(pod *corev1.Pod) Fault {
	f.lock.Lock()
	defer f.lock.Unlock()
	for i, rule := range f.rules {
		if rule.Match == nil && !isMover(pod) || rule.Match != nil && !rule.Match(pod) {
			continue
		}
		hit := *rule
		if rule.Times == 1 {
			f.rules = slices.Delete(f.rules, i, i+1)
		} else if rule.Times > 1 {
			rule.Times--
		}
		return hit
	}
	return Fault{}
}
