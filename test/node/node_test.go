package node_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
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

// pod waits for the pod m1 in Velero's namespace.
func (s *env) pod(ctx context.Context, t *testing.T, done func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	pod, err := s.WaitPod(ctx, s.Namespace, "m1", done)
	require.NoError(t, err)
	return pod
}

func in(phase corev1.PodPhase) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool { return pod.Status.Phase == phase }
}

func (s *env) delete(ctx context.Context, t *testing.T, name string, grace *int64) {
	t.Helper()
	require.NoError(t, s.Kube.CoreV1().Pods(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: grace}))
}
