package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

// initialize runs the init containers in order. All end at once, except the one that waits for restored volumes.
func (n *Node) initialize(ctx context.Context, pod *corev1.Pod, volumes map[string]string) error {
	for i, container := range pod.Spec.InitContainers {
		if container.Name != testenv.WaitContainer {
			continue
		}
		if err := n.post(ctx, pod, initializing(pod, i)); err != nil {
			return err
		}
		wait := n.awaitRestores
		if n.options.Inits != nil {
			wait = n.runInit
		}
		if err := wait(ctx, pod, container, volumes); err != nil {
			return fmt.Errorf("run init container %s: %w", container.Name, err)
		}
	}
	return nil
}

// runInit runs an init container to completion. It fails unless the exit code is 0.
func (n *Node) runInit(ctx context.Context, pod *corev1.Pod, container corev1.Container, volumes map[string]string) error {
	log := &bytes.Buffer{}
	host := Host{Node: n.options.Name, PodDir: n.podDir(pod), Log: log, Volumes: volumes, Beside: n.beside}
	if end := n.options.Inits.run(ctx, pod, container, host); end.ExitCode != 0 {
		return fmt.Errorf("exit code %d: %s%s", end.ExitCode, end.Message, log)
	}
	return nil
}

// restoresDir is the mount path of the restored volumes in the waiting container.
const restoresDir = "/restores/"

// markInterval is the interval between looks for the mark of a restore.
const markInterval = 20 * time.Millisecond

// awaitRestores plays `velero-restore-helper UID`: it waits until every volume has the mark of that restore, then
// removes the marks. It polls, as Velero's helper does each second.
func (n *Node) awaitRestores(ctx context.Context, _ *corev1.Pod, container corev1.Container, volumes map[string]string) error {
	if len(container.Args) != 1 {
		return fmt.Errorf("want one argument, the restore's UID; got %q", container.Args)
	}
	tick := time.NewTicker(markInterval)
	defer tick.Stop()
	for _, mount := range container.VolumeMounts {
		if !strings.HasPrefix(mount.MountPath, restoresDir) {
			continue
		}
		done := filepath.Join(volumes[mount.Name], doneDir)
		for !exists(filepath.Join(done, container.Args[0])) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := os.RemoveAll(done); err != nil {
			return fmt.Errorf("remove mark of volume %s: %w", mount.Name, err)
		}
	}
	return nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// initializing returns the status of a pod whose init container with that index runs.
func initializing(pod *corev1.Pod, running int) corev1.PodStatus {
	status := waiting(pod, Waiting{Reason: "PodInitializing"})
	status.PodIP, status.PodIPs = address, []corev1.PodIP{{IP: address}}
	status.InitContainerStatuses = initialized(pod, metav1.Now())
	for i, container := range pod.Spec.InitContainers[running:] {
		state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
		if i == 0 {
			state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
		}
		status.InitContainerStatuses[running+i] = corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Started: new(i == 0), State: state,
		}
	}
	for i := range status.Conditions {
		if condition := &status.Conditions[i]; condition.Type == corev1.PodInitialized {
			condition.Status, condition.Reason = corev1.ConditionFalse, "ContainersNotInitialized"
			condition.Message = fmt.Sprintf("containers with incomplete status: [%s]", pod.Spec.InitContainers[running].Name)
		}
	}
	return status
}

// initialized returns the statuses of init containers that have all succeeded.
func initialized(pod *corev1.Pod, now metav1.Time) []corev1.ContainerStatus {
	var statuses []corev1.ContainerStatus
	for _, container := range pod.Spec.InitContainers {
		statuses = append(statuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true, Started: new(false), ContainerID: containerID(pod),
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Reason: "Completed", StartedAt: now, FinishedAt: now, ContainerID: containerID(pod),
			}},
		})
	}
	return statuses
}
