package node_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

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

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, &plane)) }

// family is a program with a child. Both ignore signals, and have a pipe open for their whole lives.
type family struct {
	dir, program string
	pipe         *os.File
}

func newFamily(t *testing.T) *family {
	t.Helper()
	f := &family{dir: t.TempDir()}
	pipe := filepath.Join(f.dir, "pipe")
	output, err := exec.CommandContext(t.Context(), "mkfifo", pipe).CombinedOutput()
	require.NoError(t, err, "%s", output)
	f.program = filepath.Join(f.dir, "program")
	script := "#!/bin/bash\ntrap '' TERM INT\nexec >" + pipe + "\n/bin/sleep 600 &\necho started\nwait\n"
	require.NoError(t, os.WriteFile(f.program, []byte(script), 0o700))
	f.pipe, err = os.OpenFile(pipe, os.O_RDWR, 0) // not blocked until the program opens it
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.pipe.Close() })
	return f
}

// endsWith requires that both processes run before end, and neither after it.
func (f *family) endsWith(t *testing.T, end func()) {
	t.Helper()
	require.NoError(t, f.pipe.SetDeadline(time.Now().Add(testenv.Patience)))
	_, err := f.pipe.Read(make([]byte, len("started\n")))
	require.NoError(t, err)
	reader, err := os.Open(f.pipe.Name())
	require.NoError(t, err)
	defer reader.Close()
	require.NoError(t, reader.SetDeadline(time.Now().Add(testenv.Patience)))
	require.NoError(t, f.pipe.Close())
	end()
	_, err = reader.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "the program and its child have ended")
}

// libraries returns the directories that a shell needs.
func libraries() []string {
	return slices.DeleteFunc([]string{"/bin", "/lib", "/lib64", "/usr"}, func(dir string) bool {
		_, err := os.Stat(dir)
		return err != nil
	})
}

func TestNoProcessOfARealMoverIsLeft(t *testing.T) {
	tests := map[string]func(context.Context, *testing.T, *fixture.Env){
		"pod-is-deleted": func(ctx context.Context, t *testing.T, e *fixture.Env) {
			t.Helper()
			require.NoError(t, e.Kube.CoreV1().Pods(e.Namespace).Delete(ctx, "m1", metav1.DeleteOptions{}))
			require.NoError(t, e.WaitPodGone(ctx, e.Namespace, "m1"))
		},
		"pod-is-evicted": func(ctx context.Context, t *testing.T, e *fixture.Env) {
			t.Helper()
			require.NoError(t, e.Nodes[0].Evict(e.Namespace, "m1", "low on memory"))
			_, err := e.WaitPod(ctx, e.Namespace, "m1", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
			require.NoError(t, err)
		},
		"node-stops": func(_ context.Context, _ *testing.T, e *fixture.Env) { e.Nodes[0].Stop() },
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, f := fixture.Soon(t), newFamily(t)
			runner := node.Real{Config: plane.Admin(), Velero: f.program, Binds: append(libraries(), f.dir)}
			options := fixture.Options{Nodes: []node.Options{{Name: name, Runner: node.Movers{Runner: runner}}}}
			options.Node = name
			e, err := fixture.New(ctx, plane, t.TempDir(), options)
			t.Cleanup(func() { require.NoError(t, e.Close()) })
			require.NoError(t, err)
			_, err = e.Kube.CoreV1().Pods(e.Namespace).Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "m1", Labels: map[string]string{testenv.PodVolumeBackup.Label(): "m1"}},
				Spec: corev1.PodSpec{
					NodeName: e.Nodes[0].Name(), RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(1)),
					Containers: []corev1.Container{{Name: "mover", Image: "velero:x", Command: []string{"/velero"}}},
				},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
			f.endsWith(t, func() { end(ctx, t, e) })
		})
	}
}

func TestNoProcessOfVelerosServerIsLeft(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := newFamily(t)
	_, err := node.StartVeleroServer(ctx, node.ServerOptions{Velero: f.program, Kubeconfig: "none", Namespace: "velero", Dir: f.dir})
	require.NoError(t, err)
	f.endsWith(t, cancel)
}
