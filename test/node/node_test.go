package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// plane is the only control plane of this test binary. TestMain sets it.
var plane *cluster.Cluster

func TestMain(m *testing.M) {
	if role := os.Getenv(playing); role != "" {
		os.Exit(play(role))
	}
	os.Exit(fixture.Main(m, &plane))
}

// deadline returns a context that bounds all waits of a test.
var deadline = fixture.Soon

// envs counts the environments, so that each has a unique name.
var envs atomic.Int64

// env is an installation of Velero with its own node.
type env struct {
	*testenv.Env
	node *node.Node
}

// newEnv starts a node in its own directory. It has the name of its namespace.
func newEnv(ctx context.Context, t *testing.T, options node.Options) *env {
	t.Helper()
	return newEnvOf(ctx, t, plane.Admin(), options)
}

// newEnvOf connects the node to the API server by config.
func newEnvOf(ctx context.Context, t *testing.T, config *rest.Config, options node.Options) *env {
	t.Helper()
	options.Name = fmt.Sprintf("site-%d", envs.Add(1))
	options.Root = t.TempDir()
	installed, err := testenv.New(ctx, plane.Admin(), testenv.Options{Namespace: options.Name, Node: options.Name, KubeletRoot: options.Root})
	require.NoError(t, err)
	started, err := node.Start(ctx, config, options)
	require.NoError(t, err)
	t.Cleanup(started.Stop)
	return &env{Env: installed, node: started}
}

// mover creates a pod that has the form of a pod volume backup's mover.
func (s *env) mover(ctx context.Context, t *testing.T, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{testenv.PodVolumeBackup.Label(): name}},
		Spec: corev1.PodSpec{
			NodeName: s.node.Name(), RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{
				Name: "mover", Image: "velero:x", Command: []string{"/velero", "pod-volume", "backup"},
				Args: []string{"--pod-volume-backup=" + name},
			}},
		},
	}
	for _, alter := range change {
		alter(pod)
	}
	created, err := s.Kube.CoreV1().Pods(s.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// pod waits for a pod in Velero's namespace.
func (s *env) pod(ctx context.Context, t *testing.T, name string, done func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	pod, err := s.WaitPod(ctx, s.Namespace, name, done)
	require.NoError(t, err)
	return pod
}

func in(phase corev1.PodPhase) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool { return pod.Status.Phase == phase }
}

// condition returns a condition of a pod; the zero value if there is none.
func condition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}

func (s *env) delete(ctx context.Context, t *testing.T, name string, grace *int64) {
	t.Helper()
	require.NoError(t, s.Kube.CoreV1().Pods(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: grace}))
}

func TestPodThatTheSchedulerBindsRuns(t *testing.T) {
	ctx := deadline(t)
	reported := make(chan string, 10)
	zone := map[string]string{"zone": fmt.Sprintf("z%d", envs.Add(1))}
	s := newEnv(ctx, t, node.Options{
		Labels: zone, StartDelay: 10 * time.Millisecond, OnRunning: func(pod *corev1.Pod) { reported <- pod.Name },
	})
	free := func(pod *corev1.Pod) { pod.Spec.NodeName, pod.Spec.NodeSelector = "", zone }
	s.mover(ctx, t, "m1", free)
	pod := s.pod(ctx, t, "m1", testenv.Ready)
	require.Equal(t, s.node.Name(), pod.Spec.NodeName)
	require.Equal(t, corev1.PodRunning, pod.Status.Phase)
	require.Equal(t, "127.0.0.1", pod.Status.PodIP)
	require.Len(t, pod.Status.ContainerStatuses, 1)
	require.NotNil(t, pod.Status.ContainerStatuses[0].State.Running)
	require.Equal(t, corev1.ConditionTrue, condition(pod, corev1.PodScheduled).Status)
	for name := ""; name != "m1"; { // the pods of the installation run here too
		select {
		case name = <-reported:
		case <-ctx.Done():
			t.Fatal("nobody is told of the pod")
		}
	}
}

func TestNodeStaysReady(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{Heartbeat: 20 * time.Millisecond})
	watcher, err := s.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + s.node.Name()})
	require.NoError(t, err)
	defer watcher.Stop()
	for range 4 { // the initial state and three renewals
		select {
		case <-watcher.ResultChan():
		case <-ctx.Done():
			t.Fatal("the lease is not renewed")
		}
	}
	found, err := s.Kube.CoreV1().Nodes().Get(ctx, s.node.Name(), metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, s.node.Name(), found.Labels[corev1.LabelHostname])
	require.NotZero(t, found.Status.Allocatable.Pods().Value())
	for _, c := range found.Status.Conditions {
		if c.Type == corev1.NodeReady {
			require.Equal(t, corev1.ConditionTrue, c.Status)
			return
		}
	}
	t.Fatal("the node has no condition Ready")
}

func TestSchedulerPreemptsForAPodOfHigherPriority(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{Allocatable: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("10"),
	}})
	high := s.Namespace + "-high"
	require.NoError(t, s.PriorityClass(ctx, high, 1000))
	big := func(pod *corev1.Pod) {
		pod.Spec.NodeName, pod.Spec.NodeSelector = "", map[string]string{corev1.LabelHostname: s.node.Name()}
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("800m")}
	}
	s.mover(ctx, t, "low", big)
	s.pod(ctx, t, "low", testenv.Ready)
	ends, err := s.Kube.CoreV1().Pods(s.Namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=low"})
	require.NoError(t, err)
	defer ends.Stop()
	s.mover(ctx, t, "high", big, func(pod *corev1.Pod) { pod.Spec.PriorityClassName = high })
	s.pod(ctx, t, "high", testenv.Ready)
	for event := range ends.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		require.True(t, ok)
		if pod.Status.Phase == corev1.PodFailed { // the kubelet's last status keeps the scheduler's condition
			require.Equal(t, corev1.PodReasonPreemptionByScheduler, condition(pod, corev1.DisruptionTarget).Reason)
			require.EqualValues(t, 143, pod.Status.ContainerStatuses[0].State.Terminated.ExitCode)
			return
		}
	}
	t.Fatal("the pod of lower priority has not ended")
}

// left lists the files of a pod on the node.
func (s *env) left(t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.node.PodsDir(), string(pod.UID)))
	require.NoError(t, err)
	return found
}
