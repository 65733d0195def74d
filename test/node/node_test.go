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
	options.Name = fmt.Sprintf("site-%d", envs.Add(1))
	options.Root = t.TempDir()
	installed, err := testenv.New(ctx, plane.Admin(), testenv.Options{Namespace: options.Name, Node: options.Name, KubeletRoot: options.Root})
	require.NoError(t, err)
	started, err := node.Start(ctx, plane.Admin(), options)
	require.NoError(t, err)
	t.Cleanup(started.Stop)
	return &env{Env: installed, node: started}
}

// mover creates the pod m1, which has the form of a pod volume backup's mover.
func (s *env) mover(ctx context.Context, t *testing.T, change func(*corev1.Pod)) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "m1", Labels: map[string]string{testenv.PodVolumeBackup.Label(): "m1"}},
		Spec: corev1.PodSpec{
			NodeName: s.node.Name(), RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{
				Name: "mover", Image: "velero:x", Command: []string{"/velero", "pod-volume", "backup"},
				Args: []string{"--pod-volume-backup=m1"},
			}},
		},
	}
	change(pod)
	_, err := s.Kube.CoreV1().Pods(s.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	require.NoError(t, err)
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
