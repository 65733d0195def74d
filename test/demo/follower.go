package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/test/world"
)

// follower tells the story of one PodVolumeBackup from two watches that were open before it was made, so
// that nothing can be missed.
type follower struct {
	report
	story
	uid     types.UID
	backups watch.Interface
	pods    watch.Interface
}

// follow opens the watches, lets create make the backup, and takes note of which one it is.
func follow(
	ctx context.Context, r report, w *world.World, create func() (*velerov1.PodVolumeBackup, error),
) (*follower, error) {
	f := &follower{report: r}
	var err error
	options := metav1.ListOptions{Watch: true}
	f.backups, err = w.Velero.Get().Namespace(w.Namespace).Resource("podvolumebackups").
		VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch PodVolumeBackups: %w", err)
	}
	f.pods, err = w.Kube.CoreV1().Pods(w.Namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		f.backups.Stop()
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	made, err := create()
	if err != nil {
		f.stop()
		return nil, fmt.Errorf("create PodVolumeBackup: %w", err)
	}
	f.uid = made.UID
	return f, nil
}

func (f *follower) stop() {
	f.backups.Stop()
	f.pods.Stop()
}

// until reads on until done says so of the story. Its error tells the story so far.
func (f *follower) until(ctx context.Context, what string, done func(story) bool) error {
	for !done(f.story) {
		if err := f.next(ctx); err != nil {
			return fmt.Errorf("wait until %s: %w; seen: %s, %d mover pods, message %q",
				what, err, f.passed(), len(f.movers), f.backup.Status.Message)
		}
	}
	return nil
}

// next takes in one event.
func (f *follower) next(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case event := <-f.backups.ResultChan():
		backup, ok := event.Object.(*velerov1.PodVolumeBackup)
		if !ok {
			return broken(event)
		}
		if backup.UID == f.uid {
			f.seeBackup(*backup)
		}
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

// seeBackup prints each new phase.
func (f *follower) seeBackup(backup velerov1.PodVolumeBackup) {
	before := len(f.phases)
	f.see(backup, time.Now())
	if len(f.phases) > before {
		f.step("PodVolumeBackup %s is %s", backup.Name, f.phases[before].phase)
	}
}

// seePod prints when a mover comes to run, and when it is gone.
func (f *follower) seePod(pod corev1.Pod, gone bool) {
	ran := f.mover().pod.UID == pod.UID && f.mover().running()
	f.seeMover(pod, gone)
	m := f.mover()
	switch {
	case gone:
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
