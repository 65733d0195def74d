package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// podRun is a pod that this node runs, from when it is seen to when it is gone.
type podRun struct {
	pod     *corev1.Pod
	deleted chan struct{}         // closed when the API says that the pod is to end
	gone    context.CancelFunc    // the object is gone: nothing is left to report to
	evicted chan corev1.PodStatus // the end that somebody else has decided on
}

// What ends a pod's context.
var (
	errDeleted = errors.New("pod is deleted")
	errEvicted = errors.New("pod is evicted")
)

func (n *Node) watchPods(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.options.Name).String()
	}))
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { n.seen(ctx, object) },
		UpdateFunc: func(_, object any) { n.seen(ctx, object) },
		DeleteFunc: func(object any) { n.lost(object) },
	})
	if err != nil {
		return fmt.Errorf("watch pods of node %s: %w", n.options.Name, err)
	}
	n.running.Go(func() { informer.RunWithContext(ctx) })
	return nil
}

// seen starts a pod that is new, and tells one that is deleted.
func (n *Node) seen(ctx context.Context, object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	run := n.pods[pod.UID]
	if run == nil {
		runCtx, gone := context.WithCancel(ctx)
		run = &podRun{pod: pod, deleted: make(chan struct{}), gone: gone, evicted: make(chan corev1.PodStatus, 1)}
		n.pods[pod.UID] = run
		n.running.Go(func() { n.run(runCtx, run) })
	}
	if pod.DeletionTimestamp != nil {
		select {
		case <-run.deleted:
		default:
			close(run.deleted)
		}
	}
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
		run.gone()
		delete(n.pods, pod.UID)
	}
}

// run is the life of a pod.
func (n *Node) run(ctx context.Context, run *podRun) {
	logger := klog.FromContext(ctx).WithValues("node", n.options.Name, "pod", klog.KObj(run.pod))
	end, err := n.live(ctx, run)
	if err == nil && end != nil {
		err = n.post(ctx, run.pod, *end)
	}
	if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
		logger.Error(err, "Run pod")
	}
	select {
	case <-ctx.Done():
	case <-run.deleted:
		if err := n.drop(ctx, run.pod); err != nil && ctx.Err() == nil {
			logger.Error(err, "Delete pod")
		}
	}
}

// live brings a pod to run and returns how it ended; nil if there is nothing to report.
func (n *Node) live(ctx context.Context, run *podRun) (*corev1.PodStatus, error) {
	pod := run.pod
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil, nil
	}
	fault := n.Faults.take(pod)
	if fault.Refused != nil {
		return &corev1.PodStatus{Phase: corev1.PodFailed, Reason: fault.Refused.Reason, Message: "Pod was rejected: " + fault.Refused.Message}, nil
	}
	if fault.NeverStarts || fault.Waiting != nil {
		return n.neverRuns(ctx, run, fault)
	}
	if !wait(ctx, run, n.options.StartDelay) {
		return new(ended(pod, Result{ExitCode: 137, Reason: "ContainerStatusUnknown"})), nil
	}
	volumes, err := n.makeVolumes(ctx, pod)
	if err != nil {
		return nil, err
	}
	if err := n.post(ctx, pod, started(pod)); err != nil {
		return nil, err
	}
	if n.options.OnRunning != nil {
		n.options.OnRunning(pod)
	}
	if fault.Ends != nil {
		return new(ended(pod, *fault.Ends)), nil
	}
	return n.contain(ctx, run, volumes)
}

// contain runs the containers until they end or are ended.
func (n *Node) contain(ctx context.Context, run *podRun, volumes map[string]string) (*corev1.PodStatus, error) {
	pod := run.pod
	log, err := n.logs.open(pod)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	inside, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	result := make(chan Result, 1)
	go func() {
		result <- n.options.Runner.Run(inside, pod, Host{
			Node: n.options.Name, PodDir: filepath.Join(n.PodsDir(), string(pod.UID)), Log: log, Volumes: volumes,
		})
	}()
	select {
	case end := <-result:
		return new(ended(pod, end)), nil
	case status := <-run.evicted:
		stop(errEvicted)
		<-result
		return &status, nil
	case <-run.deleted:
		stop(errDeleted)
		return new(ended(pod, await(result, pod))), nil
	case <-ctx.Done():
		<-result
		return nil, nil
	}
}

// await gives containers the pod's grace to end, then reports them killed.
func await(result <-chan Result, pod *corev1.Pod) Result {
	grace := time.NewTimer(time.Duration(ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 30)) * time.Second)
	defer grace.Stop()
	select {
	case end := <-result:
		return end
	case <-grace.C:
		return Result{ExitCode: 137}
	}
}

// neverRuns shows why a pod does not start, until it is deleted.
func (n *Node) neverRuns(ctx context.Context, run *podRun, fault Fault) (*corev1.PodStatus, error) {
	why := Waiting{Reason: "ContainerCreating"}
	if fault.Waiting != nil {
		why = *fault.Waiting
	}
	if err := n.post(ctx, run.pod, waiting(run.pod, why)); err != nil {
		return nil, err
	}
	select {
	case <-run.deleted:
		return new(ended(run.pod, Result{ExitCode: 137, Reason: "ContainerStatusUnknown"})), nil
	case <-ctx.Done():
		return nil, nil
	}
}

// wait is false if the pod is deleted meanwhile.
func wait(ctx context.Context, run *podRun, delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-run.deleted:
		return false
	case <-ctx.Done():
		return false
	}
}

// drop removes the object of a pod that has ended and was deleted.
func (n *Node) drop(ctx context.Context, pod *corev1.Pod) error {
	err := n.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
