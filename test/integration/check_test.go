package integration

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
)

func TestCheckLooksUpWhatIsNamedInTheCluster(t *testing.T) {
	t.Parallel()
	s := buildEnv(t, 0)
	s.configure(`{"priorityClassName": "class-that-is-not-there", "loadConcurrency": {"globalConfig": 3}}`)
	binary, err := cluster.FindBinary("lateen")
	require.NoError(t, err)
	command := exec.CommandContext(s.soon(), binary, "check", "--kubeconfig="+kubeconfig(t, plane.Admin(), s.Namespace),
		"--namespace="+s.Namespace, "--node-agent-configmap="+configMap, "--node="+s.node.Name())
	reported, err := command.Output()
	require.Error(t, err)
	require.Equal(t, 1, command.ProcessState.ExitCode(), "%s", reported)
	for _, description := range []string{
		"node-agent: ConfigMap " + s.Namespace + "/" + configMap, `no PriorityClass "class-that-is-not-there"`,
		"none (see problem 1)", "3 on node " + s.node.Name(),
		"repo-maintenance-job: neither the agents nor Velero's server name a ConfigMap",
	} {
		require.Contains(t, string(reported), description)
	}
}
