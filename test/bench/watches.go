package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// written is how many Events each part of the scene writes.
const written = 4000

// watches is what the agent's watch per transfer on the Events of its mover costs the control plane. There is
// no watch cache for Events, so each watch is a stream from etcd that gets every Event of the namespace.
func (s *stage) watches(ctx context.Context) error {
	const namespace = "watches"
	client, err := kubernetes.NewForConfig(s.plane.Admin())
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	wanted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, wanted, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace: %w", err)
	}
	for _, open := range []int{0, slots, 100} {
		if err := s.writeWatched(ctx, client, namespace, open); err != nil {
			return err
		}
	}
	return nil
}

// writeWatched writes Events under that many watches, none of which they are for, and adds what it took.
func (s *stage) writeWatched(ctx context.Context, client kubernetes.Interface, namespace string, open int) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	for i := range open {
		watcher, err := client.CoreV1().Events(namespace).Watch(watching, metav1.ListOptions{
			FieldSelector: fmt.Sprintf("involvedObject.uid=watched-%d", i),
		})
		if err != nil {
			return fmt.Errorf("watch Events: %w", err)
		}
		defer watcher.Stop()
	}
	before, err := controlPlaneCPU()
	if err != nil {
		return err
	}
	if err := writeEvents(ctx, client, namespace); err != nil {
		return err
	}
	after, err := controlPlaneCPU()
	if err != nil {
		return err
	}
	const title = "Processor time of the control plane per Event in a namespace with watches on other objects' Events"
	for _, name := range controlPlane() {
		s.add(Figure{title, fmt.Sprintf("%d watches: %s", open, name), microseconds((after[name] - before[name]) / written), "µs", "", ""})
	}
	return nil
}

// controlPlane are the processes that an Event passes.
func controlPlane() []string { return []string{"kube-apiserver", "etcd"} }

func controlPlaneCPU() (map[string]time.Duration, error) {
	used := map[string]time.Duration{}
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
	return inParallel(written, slots, func(i int) error {
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
