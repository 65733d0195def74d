package node_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// family is a process and its child, which this test binary plays.
type family struct {
	binary, dir string
	socket      *net.UnixListener
}

func newFamily(t *testing.T) *family {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	f := &family{binary: self, dir: t.TempDir()}
	f.socket, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(f.dir, "calls")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.socket.Close()) })
	require.NoError(t, f.socket.SetDeadline(time.Now().Add(testenv.Patience)))
	return f
}

// endsWith requires that both processes run before end, and neither after it.
func (f *family) endsWith(t *testing.T, end func()) {
	t.Helper()
	var calls []net.Conn
	for range 2 {
		call, err := f.socket.Accept()
		require.NoError(t, err)
		require.NoError(t, call.SetDeadline(time.Now().Add(testenv.Patience)))
		calls = append(calls, call)
	}
	end()
	for _, call := range calls {
		_, err := call.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "the process and its child are gone")
		require.NoError(t, call.Close())
	}
}

// libraries returns the directories of shared libraries for a dynamically linked test binary.
func libraries() (dirs []string) {
	for _, dir := range []string{"/lib", "/lib64", "/usr/lib"} {
		if _, err := os.Stat(dir); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func TestNoProcessOfARealMoverIsLeft(t *testing.T) {
	f := newFamily(t)
	tests := map[string]func(*testing.T, *env){
		"when its pod is deleted": func(t *testing.T, s *env) {
			t.Helper()
			require.NoError(t, s.Kube.CoreV1().Pods(s.Namespace).Delete(deadline(t), "m1", metav1.DeleteOptions{}))
			require.NoError(t, s.WaitPodGone(deadline(t), s.Namespace, "m1"))
		},
		"when its pod is evicted": func(t *testing.T, s *env) {
			t.Helper()
			require.NoError(t, s.node.Evict(s.Namespace, "m1", "low on memory"))
			s.pod(deadline(t), t, in(corev1.PodFailed))
		},
		"when the node stops": func(_ *testing.T, s *env) { s.node.Stop() },
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			runner := node.Real{Config: plane.Admin(), Velero: f.binary, Binds: append(libraries(), f.dir)}
			s := newEnv(ctx, t, node.Options{Runner: node.Movers{Runner: runner}})
			s.mover(ctx, t, func(pod *corev1.Pod) {
				pod.Spec.Containers[0].Env = []corev1.EnvVar{
					{Name: playing, Value: "parent"}, {Name: calling, Value: f.socket.Addr().String()},
				}
			})
			f.endsWith(t, func() { end(t, s) })
		})
	}
}

func TestNoProcessOfVelerosServerIsLeft(t *testing.T) {
	f := newFamily(t)
	t.Setenv(calling, f.socket.Addr().String())
	t.Setenv(playing, "parent")
	ends := map[string]func(*node.VeleroServer, context.CancelFunc){
		"when it is stopped":       func(server *node.VeleroServer, _ context.CancelFunc) { server.Stop() },
		"when its context is done": func(_ *node.VeleroServer, cancel context.CancelFunc) { cancel() },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			server, err := node.StartVeleroServer(ctx, node.ServerOptions{Velero: f.binary, Kubeconfig: "none", Namespace: "velero", Dir: f.dir})
			require.NoError(t, err)
			f.endsWith(t, func() { end(server, cancel) })
		})
	}
}
