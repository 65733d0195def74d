package node_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// waits returns a condition: the container of the pod waits for a reason.
func waits(reason string) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		statuses := pod.Status.ContainerStatuses
		return len(statuses) > 0 && statuses[0].State.Waiting != nil && statuses[0].State.Waiting.Reason == reason
	}
}

func TestContainerThatDoesNotStartSaysWhy(t *testing.T) {
	tests := map[string]struct {
		fault           node.Fault
		reason, message string
	}{
		"the container is being created for ever": {
			fault: node.Fault{NeverStarts: true}, reason: "ContainerCreating",
		},
		"an image that cannot be pulled is not tried again at once": {
			fault:  node.Fault{Waiting: &node.Waiting{Reason: "ErrImagePull", Message: "no such host"}},
			reason: "ImagePullBackOff", message: `Back-off pulling image "velero:x": ErrImagePull: no such host`,
		},
		"an image name can be wrong": {
			fault:  node.Fault{Waiting: &node.Waiting{Reason: "InvalidImageName", Message: "invalid reference format"}},
			reason: "InvalidImageName", message: "invalid reference format",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			s := newEnv(ctx, t, node.Options{})
			s.node.Faults.Add(test.fault)
			created := s.mover(ctx, t, "m1")
			pod := s.pod(ctx, t, "m1", waits(test.reason))
			require.Equal(t, corev1.PodPending, pod.Status.Phase)
			require.Equal(t, test.message, pod.Status.ContainerStatuses[0].State.Waiting.Message)
			require.Equal(t, "ContainersNotReady", condition(pod, corev1.PodReady).Reason)
			s.delete(ctx, t, "m1", nil)
			require.NoError(t, s.WaitPodGone(ctx, s.Namespace, "m1"))
			require.Empty(t, s.left(t, created))
		})
	}
}

func TestContainerThatEndsSaysHow(t *testing.T) {
	long := strings.Repeat("x", 5000) + "data path is canceled"
	tests := map[string]struct {
		end     node.Result
		phase   corev1.PodPhase
		reason  string
		message string
	}{
		"an error has an exit code and a message": {
			end: node.Result{ExitCode: 1, Message: "disk on fire"}, phase: corev1.PodFailed, reason: "Error", message: "disk on fire",
		},
		"success may leave garbage": {
			end: node.Result{Message: "{no json"}, phase: corev1.PodSucceeded, reason: "Completed", message: "{no json",
		},
		"memory may be short": {
			end: node.Result{ExitCode: 137, Reason: "OOMKilled"}, phase: corev1.PodFailed, reason: "OOMKilled",
		},
		"of a long message the end is kept": {
			end: node.Result{ExitCode: 1, Message: long}, phase: corev1.PodFailed, reason: "Error", message: long[len(long)-4096:],
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			s := newEnv(ctx, t, node.Options{})
			s.node.Faults.Add(node.Fault{Ends: &test.end})
			s.mover(ctx, t, "m1")
			pod := s.pod(ctx, t, "m1", in(test.phase))
			terminated := pod.Status.ContainerStatuses[0].State.Terminated
			require.NotNil(t, terminated)
			require.Equal(t, test.end.ExitCode, terminated.ExitCode)
			require.Equal(t, test.reason, terminated.Reason)
			require.Equal(t, test.message, terminated.Message)
			require.False(t, terminated.StartedAt.IsZero())
			require.Equal(t, corev1.ConditionFalse, condition(pod, corev1.PodReady).Status)
		})
	}
}

func TestPodThatTheKubeletRefusesNeverRuns(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{})
	s.node.Faults.Add(node.Fault{Refused: &node.Waiting{Reason: "OutOfcpu", Message: "Node didn't have enough resource: cpu"}})
	s.mover(ctx, t, "m1")
	pod := s.pod(ctx, t, "m1", in(corev1.PodFailed))
	require.Equal(t, "OutOfcpu", pod.Status.Reason)
	require.Equal(t, "Pod was rejected: Node didn't have enough resource: cpu", pod.Status.Message)
	require.Empty(t, pod.Status.ContainerStatuses)
}

func TestFaultHitsAsManyPodsAsItSays(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{})
	fails := node.Fault{Ends: &node.Result{ExitCode: 1}}
	fails.Times = 2
	s.node.Faults.Add(node.Fault{Match: func(pod *corev1.Pod) bool { return pod.Name == "other" }, NeverStarts: true})
	s.node.Faults.Add(fails)
	for _, name := range []string{"m1", "m2"} {
		s.mover(ctx, t, name)
		s.pod(ctx, t, name, in(corev1.PodFailed))
	}
	s.mover(ctx, t, "m3")
	s.pod(ctx, t, "m3", testenv.Ready)
	s.mover(ctx, t, "other")
	s.pod(ctx, t, "other", waits("ContainerCreating"))
	s.node.Faults.Clear()
	s.delete(ctx, t, "other", nil)
	require.NoError(t, s.WaitPodGone(ctx, s.Namespace, "other"))
	s.mover(ctx, t, "other")
	s.pod(ctx, t, "other", testenv.Ready)
}

func TestNodeOrSchedulerEndsAPod(t *testing.T) {
	tests := map[string]struct {
		end               func(*node.Node, string, string) error
		fault             node.Fault
		before            func(*corev1.Pod) bool
		reason, condition string
		exitCode          int32
	}{
		"a pod that runs is evicted": {
			end:    func(n *node.Node, namespace, name string) error { return n.Evict(namespace, name, "low on memory") },
			before: testenv.Ready, reason: "Evicted", condition: corev1.PodReasonTerminationByKubelet, exitCode: 143,
		},
		"a pod that does not start is evicted": {
			end:   func(n *node.Node, namespace, name string) error { return n.Evict(namespace, name, "low on memory") },
			fault: node.Fault{NeverStarts: true}, before: waits("ContainerCreating"),
			reason: "Evicted", condition: corev1.PodReasonTerminationByKubelet, exitCode: 137,
		},
		"a pod that runs is preempted": {
			end:    func(n *node.Node, namespace, name string) error { return n.Preempt(namespace, name, "low on memory") },
			before: testenv.Ready, condition: corev1.PodReasonPreemptionByScheduler, exitCode: 143,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			s := newEnv(ctx, t, node.Options{})
			if test.fault.NeverStarts {
				s.node.Faults.Add(test.fault)
			}
			s.mover(ctx, t, "m1")
			s.pod(ctx, t, "m1", test.before)
			require.NoError(t, test.end(s.node, s.Namespace, "m1"))
			pod := s.pod(ctx, t, "m1", in(corev1.PodFailed))
			require.Equal(t, test.reason, pod.Status.Reason)
			target := condition(pod, corev1.DisruptionTarget)
			require.Equal(t, corev1.ConditionTrue, target.Status)
			require.Equal(t, test.condition, target.Reason)
			require.Equal(t, "low on memory", target.Message)
			require.Equal(t, test.exitCode, pod.Status.ContainerStatuses[0].State.Terminated.ExitCode)
			require.False(t, testenv.Ready(pod))
			require.ErrorContains(t, test.end(s.node, s.Namespace, "m1"), "does not run on node")
		})
	}
}

func TestImageIsPulledBeforeAContainerRuns(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{})
	s.node.Faults.Add(node.Fault{Pulls: &node.Pull{Takes: 300 * time.Millisecond, Fails: 1}})
	seen := make(chan string, 10)
	watcher, err := s.Kube.CoreV1().Events(s.Namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=m1,source=kubelet"})
	require.NoError(t, err)
	defer watcher.Stop()
	go func() {
		for change := range watcher.ResultChan() {
			if event, ok := change.Object.(*corev1.Event); ok {
				seen <- event.Reason
			}
		}
	}()
	s.mover(ctx, t, "m1")
	s.pod(ctx, t, "m1", waits("ContainerCreating"))
	s.pod(ctx, t, "m1", waits("ImagePullBackOff"))
	s.pod(ctx, t, "m1", testenv.Ready)
	for _, reason := range []string{"Pulling", "Failed", "BackOff", "Pulling", "Pulled"} {
		require.Equal(t, reason, <-seen)
	}
}
