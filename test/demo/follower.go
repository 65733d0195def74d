package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/test/testenv"
)

// follower tells the story of one transfer from two watches that were open before it was made, so
// that nothing can be missed.
type follower struct {
	report
	story
	uid       types.UID
	transfers watch.Interface
	pods      watch.Interface
}

// follow opens the watches, lets create make the transfer, and takes note of which one it is.
func follow(
	ctx context.Context, r report, w *testenv.Env, kind testenv.Kind, create func() (types.UID, error),
) (*follower, error) {
	f := &follower{report: r, story: story{kind: kind}}
	var err error
	if f.transfers, err = w.Transfers(kind).Watch(ctx); err != nil {
		return nil, err
	}
	f.pods, err = w.Kube.CoreV1().Pods(w.Namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		f.transfers.Stop()
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	if f.uid, err = create(); err != nil {
		f.stop()
		return nil, fmt.Errorf("create %s: %w", kind, err)
	}
	return f, nil
}

func (f *follower) stop() {
	f.transfers.Stop()
	f.pods.Stop()
}

// until reads on until done says so of the story. Its error tells the story so far.
func (f *follower) until(ctx context.Context, what string, done func(story) bool) error {
	for !done(f.story) {
		if err := f.next(ctx); err != nil {
			return fmt.Errorf("wait until %s: %w; seen: %s, %d mover pods, message %q",
				what, err, f.passed(), len(f.movers), f.transfer.Status.Message)
		}
	}
	return nil
}

// next takes in one event.
func (f *follower) next(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case event := <-f.transfers.ResultChan():
		resource, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			return broken(event)
		}
		if resource.GetUID() != f.uid {
			return nil
		}
		transfer, err := testenv.View(resource)
		if err != nil {
			return err
		}
		f.seeTransfer(*transfer)
	case event := <-f.pods.ResultChan():
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			return broken(event)
		}
		if owner := metav1.GetControllerOf(pod); owner != nil && owner.UID == f.uid {
			f.seePod(*pod, event.Type == watch.Deleted)
		}
	}
	return nil
}

// seeTransfer prints each new phase.
func (f *follower) seeTransfer(transfer testenv.Transfer) {
	before := len(f.phases)
	f.see(transfer, time.Now())
	if len(f.phases) > before {
		f.step("%s %s is %s", f.kind, transfer.Name, f.phases[before].phase)
	}
}

// seePod prints when a mover comes to run, and when it is gone.
func (f *follower) seePod(pod corev1.Pod, deleted bool) {
	ran := f.mover().pod.UID == pod.UID && f.mover().running()
	f.seeMover(pod, deleted)
	m := f.mover()
	switch {
	case deleted:
		f.step("mover pod %s is gone", pod.Name)
	case m.running() && !ran:
		f.step("mover pod %s is Running on %s: priorityClassName %s, priority %s",
			pod.Name, pod.Spec.NodeName, m.className(), m.priority())
	}
}

// broken is why a watch carried no object: it ended, or the API server says why.
func broken(event watch.Event) error {
	if event.Object == nil {
		return errors.New("the watch ended")
	}
	return fmt.Errorf("watch: %w", apierrors.FromObject(event.Object))
}
