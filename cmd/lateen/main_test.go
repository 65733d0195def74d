package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/exposer/api"
)

// The test program runs as lateen with the arguments after the first of these, or cleans up after a signal until its input ends.
const asLateen, cleansUp = "as-lateen", "cleans-up"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asLateen {
		os.Args = slices.Delete(os.Args, 1, 2)
		main()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == cleansUp {
		ctx := untilSignal()
		fmt.Fprintln(os.Stdout, "works")
		<-ctx.Done()
		fmt.Fprintln(os.Stdout, "cleans up")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A terminal that is closed sends SIGHUP.
func TestACommandEndsItselfAfterASignal(t *testing.T) {
	for _, sent := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		asked := make(chan struct{}, 99)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
			asked <- struct{}{}
			<-request.Context().Done() // it does not answer
		}))
		defer server.Close()
		config := filepath.Join(t.TempDir(), "config")
		require.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
			CurrentContext: "c", Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c"}}, Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: server.URL}},
		}, config))
		command := exec.CommandContext(t.Context(), os.Args[0], asLateen, "status", "--kubeconfig", config)
		require.NoError(t, command.Start())
		<-asked
		require.NoError(t, command.Process.Signal(sent))
		_ = command.Wait() // the command fails
		require.Equal(t, 1, command.ProcessState.ExitCode(), "%s ended it", sent)
	}
}

func TestACommandCleansUpAlthoughItsTerminalIsClosed(t *testing.T) {
	command := exec.CommandContext(t.Context(), os.Args[0], cleansUp)
	in, err := command.StdinPipe()
	require.NoError(t, err)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	lines := bufio.NewScanner(out)
	for range 2 { // kernel and shell both send it
		require.True(t, lines.Scan())
		require.NoError(t, command.Process.Signal(syscall.SIGHUP))
	}
	require.NoError(t, in.Close())
	_ = command.Wait() // it fails
	require.Equal(t, 1, command.ProcessState.ExitCode())
}

// run runs the program without a cluster. It returns what it prints and its error.
func run(t *testing.T, stdin string, arguments ...string) (printed string, err error) {
	t.Helper()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	root := newRoot()
	var out bytes.Buffer
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetArgs(arguments)
	err = root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestCheckOfFiles(t *testing.T) {
	corpus := func(name string) string { return filepath.Join("config", "testdata", "corpus", name) }
	for name, test := range map[string]struct {
		stdin     string
		arguments []string
		code      int
		message   string // on standard output
		fails     string // in the error
	}{
		"a good file":                          {arguments: []string{"-f", corpus("good-every-field.yaml")}, message: "No problems."},
		"one problem":                          {arguments: []string{"-f", corpus("type-flag-as-number.json")}, code: 1, message: "got a number, want true or false", fails: "1 problem"},
		"JSON":                                 {arguments: []string{"-f", corpus("type-flag-as-number.json"), "-o", "json"}, code: 1, message: `"reason": "wrong_type"`, fails: "1 problem"},
		"YAML":                                 {stdin: "{}", arguments: []string{"-f", "-", "-o", "yaml"}, message: "configMaps:\n- inEffect:\n    loadConcurrency:\n      globalConfig: 1\n"},
		"another format":                       {stdin: "{}", arguments: []string{"-f", "-", "-o", "wide"}, code: 2, fails: `invalid argument "wide" for "-o, --output" flag: use json or yaml`},
		"standard input":                       {stdin: "{}", arguments: []string{"-f", "-"}, message: "node-agent: standard input"},
		"settings of repositories":             {stdin: `{"cacheLimitMB": 1}`, arguments: []string{"-f", "-", "--as=backup-repository"}, message: "cacheLimitMB: 1\n"},
		"no cluster":                           {code: 2, fails: "find the cluster"},
		"a file, of which names are looked up": {stdin: "{}", arguments: []string{"-f", "-", "--node=n"}, code: 2, fails: "find the cluster"},
		"no such file":                         {arguments: []string{"-f", "/nonexistent"}, code: 2, fails: "/nonexistent"},
		"a kind that is unknown":               {stdin: "{}", arguments: []string{"-f", "-", "--as=x"}, code: 2, fails: `--as "x" is unknown: use node-agent, backup-repository or repo-maintenance-job`},
		"a kind without a file":                {arguments: []string{"--as=node-agent"}, code: 2, fails: "name one with -f"},
		"a file and a name":                    {arguments: []string{"-f", "-", "--node-agent-configmap=x"}, code: 2, fails: "remove -f"},
		"a flag that is unknown":               {arguments: []string{"--nodes=x"}, code: 2, fails: "unknown flag"},
		"an argument":                          {arguments: []string{"config.json"}, code: 2, fails: "config.json"},
	} {
		t.Run(name, func(t *testing.T) {
			reported, err := run(t, test.stdin, append([]string{"check"}, test.arguments...)...)
			require.Contains(t, reported, test.message)
			if test.code == 0 {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.fails)
			require.Equal(t, test.code, cli.ExitCode(err))
		})
	}
}

func TestErrorsOfTheCommandLine(t *testing.T) {
	adopt := func(arguments ...string) []string { return append([]string{"adopt", "--lateen-image=a"}, arguments...) }
	install := func(arguments ...string) []string {
		return append([]string{"install", "--lateen-image=a", "--provider=aws", "--bucket=b", "--plugins=p", "--no-secret"}, arguments...)
	}
	for name, test := range map[string]struct {
		arguments []string
		message   string
	}{
		"a status without a cluster":       {[]string{"status"}, "find the cluster"},
		"a status in another format":       {[]string{"status", "-o", "table"}, `invalid argument "table" for "-o, --output" flag: use json or yaml`},
		"a context that does not exist":    {[]string{"status", "--context", "elsewhere"}, `context "elsewhere" does not exist`},
		"a context as Velero names it":     {[]string{"status", "--kubecontext", "elsewhere"}, `context "elsewhere" does not exist`},
		"an agent's argument":              {[]string{"node-agent", "serve"}, `invalid argument "serve"`},
		"Velero's arguments of an agent":   {[]string{"node-agent", "server", "--node-agent-configmap=a", "--metrics-address=x"}, "NODE_NAME is not set"},
		"an explanation without a cluster": {[]string{"explain", "pvb/nightly"}, "find the cluster"},
		"Secrets for unrestricted movers":  {adopt("--mover-secrets=bucket"), "add --restrict-movers"},
		"an unknown policy":                {adopt("--pod-policy=all"), "use restricted or privileged"},
		"copies from nowhere":              {adopt("--copy-secrets=key"), "--copy-from is missing"},
		"objects that are not printed":     {adopt("-o=json"), "add --dry-run"},
		"an undo that restricts":           {[]string{"adopt", "--undo", "--restrict-movers"}, "remove --restrict-movers, --mover-secrets and --pod-policy"},
		"an undo with copies":              {[]string{"adopt", "--undo", "--copy-from=apps"}, "--undo removes all RBAC rules for copies"},
		"two intervals of maintenance":     {install("--repo-maintenance-frequency=2h", "--default-repo-maintain-frequency=1h"), "remove one"},
		"a cancel of nothing":              {[]string{"cancel"}, "select transfers with one of --backup, --restore, or names such as pvb/nightly-x7k2p"},
		"a cancel of two things":           {[]string{"cancel", "--backup=a", "--restore=b"}, "select transfers with one of"},
		"a cancel of a repository":         {[]string{"cancel", "br/x"}, "br/x is not a transfer: only pvb, pvr, du and dd can be canceled"},
		"a cancel without a kind":          {[]string{"cancel", "x"}, `"x" is not KIND/NAME`},
		"a verification of nothing":        {[]string{"verify"}, "name a Backup with --backup"},
		"a verification of none at once":   {[]string{"verify", "--backup=x", "--parallel=0"}, "--parallel=0: use 1 or more"},
		"maintenance without agents":       {install("--repo-maintenance-frequency=2h", "--use-node-agent=false"), "remove --use-node-agent=false"},
	} {
		_, err := run(t, "", test.arguments...)
		require.ErrorContains(t, err, test.message, name)
		require.Equal(t, 1, cli.ExitCode(err), name)
	}
}

// output returns what the program prints without a cluster.
func output(t *testing.T, arguments ...string) string {
	t.Helper()
	printed, err := run(t, "", arguments...)
	require.NoError(t, err)
	return printed
}

func TestTheVersionOfTheClientIsPrintedWithoutACluster(t *testing.T) {
	require.JSONEq(t, `{"client":"unknown","agents":[]}`, output(t, "version", "--client", "-o", "json"))
	for format, want := range map[string]string{"": "Client: unknown\n", "yaml": "agents: []\nclient: unknown\n"} {
		require.Equal(t, want, output(t, "version", "--client", "-o", format))
		printed, err := run(t, "", "version", "-o", format)
		require.ErrorContains(t, err, "there is no kubeconfig; set KUBECONFIG or --kubeconfig")
		require.Equal(t, want, printed)
	}
}

func TestCommandsHaveTheNamespaceOfVelerosCommandLine(t *testing.T) {
	t.Setenv("VELERO_NAMESPACE", "backup")
	for _, command := range newRoot().Commands() {
		if flag := command.Flags().Lookup("namespace"); flag != nil && command.Name() != "node-agent" {
			require.Equal(t, "backup", flag.Value.String(), command.Name())
		}
	}
	_, err := run(t, "", "uninstall", "--namespace=")
	require.ErrorContains(t, err, "--namespace is empty")
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
