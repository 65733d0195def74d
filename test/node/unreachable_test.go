package node_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

func unready(pod *corev1.Pod) bool {
	return condition(pod, corev1.PodReady).Status == corev1.ConditionFalse
}

// untilNode waits until its node meets a condition.
func (s *env) untilNode(ctx context.Context, t *testing.T, is func(*corev1.Node) bool) {
	t.Helper()
	_, err := testenv.Wait(ctx, s.Kube.CoreV1().Nodes(), testenv.Named(s.node.Name()), is)
	require.NoError(t, err)
}

func tainted(with *corev1.Node) bool {
	for _, taint := range with.Spec.Taints {
		if taint.Key == corev1.TaintNodeUnreachable {
			return true
		}
	}
	return false
}

func TestSilentNodeIsUnreachableUntilItSpeaksAgain(t *testing.T) {
	ctx := deadline(t)
	end := make(chan node.Result, 1)
	s := newEnv(ctx, t, node.Options{Runner: node.Movers{Runner: report{end}}})
	s.mover(ctx, t, "m1")
	s.pod(ctx, t, "m1", testenv.Ready)
	s.mover(ctx, t, "m0")
	s.pod(ctx, t, "m0", testenv.Ready)
	require.NoError(t, s.node.Silence(ctx))
	s.untilNode(ctx, t, tainted)
	s.pod(ctx, t, "m1", unready)
	require.NoError(t, s.Kube.CoreV1().Pods(s.Namespace).Delete(ctx, "m0", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}), "of which a node may not have heard")
	end <- node.Result{Message: "done"} // the container ends without a report
	s.mover(ctx, t, "m2")
	require.Equal(t, corev1.PodPending, s.pod(ctx, t, "m2", func(*corev1.Pod) bool { return true }).Status.Phase)
	require.Equal(t, corev1.PodRunning, s.pod(ctx, t, "m1", unready).Status.Phase)

	require.NoError(t, s.node.Resume(ctx))
	s.untilNode(ctx, t, func(n *corev1.Node) bool { return !tainted(n) })
	ended := s.pod(ctx, t, "m1", in(corev1.PodSucceeded))
	require.Equal(t, "done", ended.Status.ContainerStatuses[0].State.Terminated.Message)
	s.pod(ctx, t, "m2", testenv.Ready)
	_, err := s.NodeAgentPod(ctx, s.node.Name(), testenv.Ready)
	require.NoError(t, err)
}

// report is a container that ends with the result it receives.
type report struct{ end <-chan node.Result }

func (c report) Run(ctx context.Context, _ *corev1.Pod, _ node.Host) node.Result {
	select {
	case end := <-c.end:
		return end
	case <-ctx.Done():
		return node.Result{ExitCode: 143}
	}
}

func TestNodeCanLoseItsAgent(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{})
	first, err := s.NodeAgentPod(ctx, s.node.Name(), testenv.Ready)
	require.NoError(t, err)
	s.mover(ctx, t, "m1")
	s.pod(ctx, t, "m1", testenv.Ready)
	require.NoError(t, s.node.LoseAgent(ctx, s.Namespace))
	require.NoError(t, s.WaitPodGone(ctx, s.Namespace, first.Name))
	next, err := s.NodeAgentPod(ctx, s.node.Name(), waits("ContainerCreating"))
	require.NoError(t, err)
	s.pod(ctx, t, "m1", testenv.Ready)

	s.node.Faults.Clear()
	require.NoError(t, s.node.Vanish(ctx, s.Namespace, next.Name))
	_, err = s.NodeAgentPod(ctx, s.node.Name(), testenv.Ready)
	require.NoError(t, err)
}

func TestNodeIsOfTheOperatingSystemAndZoneOfItsLabels(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{Labels: map[string]string{corev1.LabelOSStable: "windows", corev1.LabelTopologyZone: "z-of-windows"}})
	found, err := s.Kube.CoreV1().Nodes().Get(ctx, s.node.Name(), metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "windows", found.Status.NodeInfo.OperatingSystem)
	s.mover(ctx, t, "m1", func(pod *corev1.Pod) {
		pod.Spec.NodeName, pod.Spec.OS = "", &corev1.PodOS{Name: corev1.Windows}
		pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "z-of-windows", corev1.LabelOSStable: "windows"}
	})
	require.Equal(t, s.node.Name(), s.pod(ctx, t, "m1", testenv.Ready).Spec.NodeName)
}

func TestStoppedKubeletHearsNothingAndItsContainersGoOn(t *testing.T) {
	ctx := deadline(t)
	end := make(chan node.Result, 1)
	s := newEnv(ctx, t, node.Options{Runner: node.Movers{Runner: report{end}}})
	s.mover(ctx, t, "m1")
	s.pod(ctx, t, "m1", testenv.Ready)
	s.node.StopKubelet()
	s.delete(ctx, t, "m1", nil)
	s.mover(ctx, t, "m2")
	end <- node.Result{Message: "done"} // only m1 runs
	require.Empty(t, s.pod(ctx, t, "m2", func(*corev1.Pod) bool { return true }).Status.ContainerStatuses)
	require.Equal(t, corev1.PodRunning, s.pod(ctx, t, "m1", testenv.Ready).Status.Phase)
	require.NoError(t, s.node.Resume(ctx))
	require.NoError(t, s.WaitPodGone(ctx, s.Namespace, "m1"))
	s.pod(ctx, t, "m2", testenv.Ready)
}
