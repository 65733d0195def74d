package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/test/fixture"
)

const (
	// written is how many Events each part of the scenario writes.
	written = 4000
	// many watches are those of 25 nodes with four slots.
	many = 100
)

// watches is what the agent's watch per transfer on the Events of its mover costs the control plane. There is
// no watch cache for Events, so each watch is a stream from etcd that gets every Event of the namespace.
func (s *env) watches(ctx context.Context) error {
	const namespace = "watches"
	client, err := kubernetes.NewForConfig(s.plane.Admin())
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	wanted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, wanted, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace: %w", err)
	}
	show := s.panel("Processor time of the control plane per Event, in a namespace with watches on other objects' Events")
	var without time.Duration
	for _, open := range []int{0, slots, many} {
		took, err := writeWatched(ctx, client, namespace, open)
		if err != nil {
			return err
		}
		if open == 0 {
			without = took.total()
		}
		for _, name := range controlPlane() {
			show.show(fmt.Sprintf("%d watches: %s", open, name), microseconds(took[name]), "µs")
		}
		if open > 0 {
			show.show(fmt.Sprintf("%d watches: more, per watch", open), microseconds((took.total()-without)/time.Duration(open)), "µs")
		}
	}
	return nil
}

// writeWatched writes Events under that many watches, none of which they are for, and returns what one took.
func writeWatched(ctx context.Context, client kubernetes.Interface, namespace string, open int) (cpu, error) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	for i := range open {
		watcher, err := client.CoreV1().Events(namespace).Watch(watching, metav1.ListOptions{
			FieldSelector: fmt.Sprintf("involvedObject.uid=watched-%d", i),
		})
		if err != nil {
			return nil, fmt.Errorf("watch Events: %w", err)
		}
		defer watcher.Stop()
	}
	before, err := controlPlaneCPU()
	if err != nil {
		return nil, err
	}
	if err := writeEvents(ctx, client, namespace); err != nil {
		return nil, err
	}
	after, err := controlPlaneCPU()
	if err != nil {
		return nil, err
	}
	for name := range after {
		after[name] = (after[name] - before[name]) / written
	}
	return after, nil
}

// cpu is processor time by process.
type cpu map[string]time.Duration

func (c cpu) total() time.Duration {
	var sum time.Duration
	for _, used := range c {
		sum += used
	}
	return sum
}

// controlPlane are the processes that an Event passes.
func controlPlane() []string { return []string{"kube-apiserver", "etcd"} }

func controlPlaneCPU() (cpu, error) {
	used := cpu{}
	for _, name := range controlPlane() {
		pid, err := child(name)
		if err != nil {
			return nil, err
		}
		if used[name], err = cpuOf(pid); err != nil {
			return nil, err
		}
	}
	return used, nil
}

func writeEvents(ctx context.Context, client kubernetes.Interface, namespace string) error {
	now := metav1.Now()
	return fixture.InParallel(written, slots, func(i int) error {
		_, err := client.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "event-", Namespace: namespace},
			InvolvedObject: corev1.ObjectReference{
				Kind: "PodVolumeBackup", Namespace: namespace, Name: fmt.Sprintf("other-%d", i), UID: "other",
			},
			Reason: "Data-Path-Progress", Message: `{"totalBytes":2,"doneBytes":1}`,
			Type: corev1.EventTypeNormal, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create Event: %w", err)
		}
		return nil
	})
}
