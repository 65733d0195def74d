package node_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// talker writes each line it receives, until the channel closes.
type talker struct{ lines chan string }

func (r talker) Run(ctx context.Context, _ *corev1.Pod, host node.Host) node.Result {
	for {
		select {
		case line, more := <-r.lines:
			if !more {
				return node.Result{ExitCode: 1}
			}
			fmt.Fprintln(host.Log, line)
		case <-ctx.Done():
			return node.Result{}
		}
	}
}

func (s *env) log(ctx context.Context, t *testing.T, options corev1.PodLogOptions) string {
	t.Helper()
	text, err := s.Kube.CoreV1().Pods(s.Namespace).GetLogs("m1", &options).DoRaw(ctx)
	require.NoError(t, err)
	return string(text)
}

func TestLogsAreServedThroughTheAPIServer(t *testing.T) {
	ctx := deadline(t)
	runner := talker{make(chan string, 9)}
	s := newEnv(ctx, t, node.Options{Runner: node.Movers{Runner: runner}})
	s.mover(ctx, t, "m1", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	})
	s.pod(ctx, t, testenv.Ready)
	stream, err := s.Kube.CoreV1().Pods(s.Namespace).GetLogs("m1", &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	require.NoError(t, err)
	defer func() { require.NoError(t, stream.Close()) }()
	following := bufio.NewReader(stream)
	for _, line := range []string{"one", "two", "three"} {
		runner.lines <- line
		text, err := following.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, line+"\n", text, "while the container runs")
	}
	tests := map[string]struct {
		options corev1.PodLogOptions
		want    string
	}{
		"everything":                       {corev1.PodLogOptions{}, "one\ntwo\nthree\n"},
		"the last lines":                   {corev1.PodLogOptions{TailLines: new(int64(2))}, "two\nthree\n"},
		"more lines than there are":        {corev1.PodLogOptions{TailLines: new(int64(9))}, "one\ntwo\nthree\n"},
		"no line":                          {corev1.PodLogOptions{TailLines: new(int64(0))}, ""},
		"the first bytes":                  {corev1.PodLogOptions{LimitBytes: new(int64(5))}, "one\nt"},
		"the first bytes of the last line": {corev1.PodLogOptions{TailLines: new(int64(1)), LimitBytes: new(int64(2))}, "th"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, s.log(ctx, t, test.options)) })
	}

	close(runner.lines)
	rest, err := io.ReadAll(following)
	require.NoError(t, err)
	require.Empty(t, rest, "the end of the container is the end of the log")
	pod := s.pod(ctx, t, in(corev1.PodFailed))
	require.Equal(t, "one\ntwo\nthree\n", pod.Status.ContainerStatuses[0].State.Terminated.Message)
	require.Equal(t, "three\n", s.log(ctx, t, corev1.PodLogOptions{TailLines: new(int64(1))}), "a container that has ended keeps its log")
}
