package node_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// alive returns the processes whose command line contains a word.
func alive(t *testing.T, word string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var found []string
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && bytes.Contains(line, []byte(word)) { // it may have ended
			found = append(found, fmt.Sprintf("%s: %q", file, line))
		}
	}
	return found
}

// untilSaid reads until the text appears or the stream ends.
func untilSaid(t *testing.T, stream io.ReadCloser, text string) {
	t.Helper()
	defer func() { require.NoError(t, stream.Close()) }()
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			return
		}
	}
	t.Fatalf("nobody says %q: %v", text, lines.Err())
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
	tests := map[string]func(*testing.T, *env){
		"when its pod is deleted": func(t *testing.T, s *env) {
			t.Helper()
			s.delete(deadline(t), t, "m1", nil)
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
			self, err := os.Executable()
			require.NoError(t, err)
			runner := node.Real{Config: plane.Admin(), Velero: self, Binds: libraries()}
			s := newEnv(ctx, t, node.Options{Runner: node.Movers{Runner: runner}})
			mark := "--mark-" + s.Namespace
			s.mover(ctx, t, "m1", func(pod *corev1.Pod) {
				pod.Spec.Containers[0].Args = []string{mark}
				pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: playing, Value: "parent"}}
			})
			s.pod(ctx, t, testenv.Ready)
			stream, err := s.Kube.CoreV1().Pods(s.Namespace).GetLogs("m1", &corev1.PodLogOptions{Follow: true}).Stream(ctx)
			require.NoError(t, err)
			untilSaid(t, stream, "child goes on")
			require.GreaterOrEqual(t, len(alive(t, mark)), 3, "bubblewrap, the process and its child")
			end(t, s)
			require.Empty(t, alive(t, mark))
		})
	}
}

func TestNoProcessOfVelerosServerIsLeft(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, "calls")})
	require.NoError(t, err)
	defer socket.Close()
	require.NoError(t, socket.SetDeadline(time.Now().Add(testenv.Patience)))
	t.Setenv(calling, socket.Addr().String())
	t.Setenv(playing, "parent")
	ends := map[string]func(*node.VeleroServer, context.CancelFunc){
		"when it is stopped":       func(server *node.VeleroServer, _ context.CancelFunc) { server.Stop() },
		"when its context is done": func(server *node.VeleroServer, cancel context.CancelFunc) { cancel(); <-server.Ended() },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			server, err := node.StartVeleroServer(ctx, node.ServerOptions{Velero: self, Kubeconfig: "none", Namespace: "velero", Dir: dir})
			require.NoError(t, err)
			child, err := socket.Accept()
			require.NoError(t, err)
			require.NoError(t, child.SetDeadline(time.Now().Add(testenv.Patience)))
			end(server, cancel)
			_, err = child.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF, "the server's child is gone too")
			require.NoError(t, child.Close())
		})
	}
}
