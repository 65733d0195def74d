package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/api"
)

// output returns what the program prints without a cluster.
func output(t *testing.T, arguments ...string) string {
	t.Helper()
	printed, err := run(t, "", arguments...)
	require.NoError(t, err)
	return printed
}

func TestTheVersionOfTheClientNeedsNoCluster(t *testing.T) {
	require.Equal(t, "Client: unknown\n", output(t, "version", "--client"))
	require.JSONEq(t, `{"client":"unknown","agents":[]}`, output(t, "version", "--client", "-o", "json"))
	require.Equal(t, "agents: []\nclient: unknown\n", output(t, "version", "--client", "-o", "yaml"))
}

func TestTheVersionOfTheClientIsPrintedWithoutACluster(t *testing.T) {
	for format, want := range map[string]string{"": "Client: unknown\n", "yaml": "agents: []\nclient: unknown\n"} {
		printed, err := run(t, "", "version", "-o", format)
		require.ErrorContains(t, err, "there is no kubeconfig; set KUBECONFIG or --kubeconfig")
		require.Equal(t, want, printed)
	}
}

func TestASimilarCommandIsSuggested(t *testing.T) {
	_, err := run(t, "", "chek")
	require.EqualError(t, err, "unknown command \"chek\" for \"lateen\"\n\nDid you mean this?\n\tcheck\n")
}

func TestEveryCommandHasTwoExamplesWithItsFlags(t *testing.T) {
	for _, command := range newRoot().Commands() {
		examples := strings.Split(strings.ReplaceAll(command.Example, "\\\n", ""), "\n")
		require.GreaterOrEqual(t, len(examples), 2, command.Name())
		for _, example := range examples {
			_, args, found := strings.Cut(example, "lateen "+command.Name())
			require.True(t, found, example)
			require.NoError(t, command.ParseFlags(strings.Fields(args)), example)
		}
	}
}

func TestContextsAreCompleted(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(kubeconfig, []byte("contexts: [{name: production}, {name: lab}]"), 0o600))
	require.True(t, strings.HasPrefix(output(t, cobra.ShellCompRequestCmd, "status", "--kubeconfig="+kubeconfig, "--context", ""), "lab\nproduction\n"))
	require.True(t, strings.HasPrefix(output(t, cobra.ShellCompRequestCmd, "status", "-o", ""), "json\nyaml\n"))
	var kinds string
	for _, kind := range api.Kinds() {
		kinds += kind.ShortName + "/\n"
	}
	require.True(t, strings.HasPrefix(output(t, cobra.ShellCompRequestCmd, "explain", ""), kinds+"br/\n"))
}

func TestTheNameOfTheProgramIsThatOfTheKubectlPlugin(t *testing.T) {
	before := os.Args[0]
	t.Cleanup(func() { os.Args[0] = before })
	os.Args[0] = "/usr/local/bin/kubectl-lateen"
	require.Contains(t, output(t, "status", "--help"), "\n  kubectl lateen status [flags]\n")
}
