package integration

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/testenv"
)

// lateen is the command, ready to be started; its environment is what is given and nothing else.
func lateen(ctx context.Context, t *testing.T, environment []string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	binary, err := cluster.FindBinary("lateen")
	require.NoError(t, err)
	command := exec.CommandContext(ctx, binary, append([]string{"node-agent", "--metrics-address=127.0.0.1:0"}, args...)...)
	command.Env = append(environment, "HOME="+t.TempDir())
	reported := &bytes.Buffer{}
	command.Stderr = reported
	return command, reported
}

// kubeconfig writes a kubeconfig file and returns its path.
func (e *env) kubeconfig(config *rest.Config) string {
	path := filepath.Join(e.TempDir(), "kubeconfig")
	require.NoError(e, e.Plane.WriteKubeconfig(config, path, e.Namespace))
	return path
}

func TestACommandThatCannotStartSaysWhyInOneLineOnKubernetes(t *testing.T) {
	s := newEnv(t, 0)
	own, err := s.Plane.ServiceAccount(s.soon(), s.Namespace, deploy.ServiceAccountName)
	require.NoError(t, err)
	stranger := rest.AnonymousClientConfig(own)
	stranger.BearerToken = "not-a-token"
	here, namespace := "NODE_NAME="+s.node.Name(), "--namespace="+s.Namespace
	good := "--kubeconfig=" + s.kubeconfig(own)
	tests := map[string]struct {
		environment []string
		args        []string
		says        []string
	}{
		"without NODE_NAME":          {args: []string{good}, says: []string{"NODE_NAME is not set", "spec.nodeName"}},
		"without a cluster":          {environment: []string{here}, says: []string{"find the cluster", "--kubeconfig"}},
		"with a file that is absent": {environment: []string{here}, args: []string{"--kubeconfig=/nonexistent"}, says: []string{"/nonexistent", "no such file"}},
		"with a token that is none":  {environment: []string{here}, args: []string{namespace, "--kubeconfig=" + s.kubeconfig(stranger)}, says: []string{"token"}},
		"on a node that is unknown":  {environment: []string{"NODE_NAME=nowhere"}, args: []string{namespace, good}, says: []string{"node nowhere", "set NODE_NAME to spec.nodeName"}},
		"when nothing answers": {
			environment: []string{here}, says: []string{"2s", "refused"},
			args: []string{namespace, "--startup-timeout=2s", "--kubeconfig=" + s.kubeconfig(&rest.Config{Host: "http://127.0.0.1:1", BearerToken: "any"})},
		},
		"with a flag that is wrong": {environment: []string{here}, args: []string{good, "--workers=0"}, says: []string{"--workers is 0"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
			defer cancel()
			command, reported := lateen(ctx, t, test.environment, test.args...)
			err := command.Run()
			require.Error(t, err)
			require.Equal(t, 1, command.ProcessState.ExitCode(), reported)
			requireOneLine(t, reported.String(), test.says)
		})
	}
}

// requireOneLine wants the last line to be the error, and nothing but log lines before it.
func requireOneLine(t *testing.T, reported string, description []string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(reported), "\n")
	for _, line := range lines[:len(lines)-1] {
		require.True(t, strings.HasPrefix(line, "time="), "not a log line: %s", line)
	}
	last := lines[len(lines)-1]
	require.True(t, strings.HasPrefix(last, "lateen: "), last)
	for _, word := range description {
		require.Contains(t, last, word)
	}
	require.NotContains(t, reported, "goroutine")
}
