package node_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/node"
)

// talker writes three lines and fails.
type talker struct{}

func (talker) Run(_ context.Context, _ *corev1.Pod, host node.Host) node.Result {
	fmt.Fprint(host.Log, "one\ntwo\nthree\n")
	return node.Result{ExitCode: 1}
}

func TestLogsAreServedThroughTheAPIServer(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{Runner: node.Movers{Runner: talker{}}})
	s.mover(ctx, t, func(pod *corev1.Pod) {
		pod.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	})
	pod := s.pod(ctx, t, in(corev1.PodFailed))
	require.Equal(t, "one\ntwo\nthree\n", pod.Status.ContainerStatuses[0].State.Terminated.Message)
	tests := map[string]struct {
		lines *int64
		want  string
	}{
		"everything":                {nil, "one\ntwo\nthree\n"},
		"the last lines":            {new(int64(2)), "two\nthree\n"},
		"more lines than there are": {new(int64(9)), "one\ntwo\nthree\n"},
		"no line":                   {new(int64(0)), ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			text, err := s.Kube.CoreV1().Pods(s.Namespace).GetLogs("m1", &corev1.PodLogOptions{TailLines: test.lines}).DoRaw(ctx)
			require.NoError(t, err)
			require.Equal(t, test.want, string(text))
		})
	}
}
