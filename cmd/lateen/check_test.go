package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
)

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
	mebibyte := `{"podLabels": {"team": "storage"}` + strings.Repeat(`, "unknown field": {"a": [1, 2, 3]}`, 1<<15) + "}"
	for name, test := range map[string]struct {
		stdin     string
		arguments []string
		code      int
		message   string // on standard output
		fails     string // in the error
	}{
		"a good file":                          {arguments: []string{"-f", corpus("good-every-field.yaml")}, message: "No problems."},
		"one problem":                          {arguments: []string{"-f", corpus("type-flag-as-number.json")}, code: 1, message: "got a number, want true or false", fails: "1 problem"},
		"several problems":                     {arguments: []string{"-f", corpus("type-number-as-string.json")}, code: 1, message: "2. loadConcurrency.prepareQueueLength, line 4", fails: "2 problems"},
		"JSON":                                 {arguments: []string{"-f", corpus("type-flag-as-number.json"), "-o", "json"}, code: 1, message: `"reason": "wrong_type"`, fails: "1 problem"},
		"YAML":                                 {stdin: "{}", arguments: []string{"-f", "-", "-o", "yaml"}, message: "configMaps:\n- inEffect:\n    loadConcurrency:\n      globalConfig: 1\n"},
		"another format":                       {stdin: "{}", arguments: []string{"-f", "-", "-o", "wide"}, code: 2, fails: `invalid argument "wide" for "-o, --output" flag: use json or yaml`},
		"standard input":                       {stdin: "{}", arguments: []string{"-f", "-"}, message: "node-agent: standard input"},
		"a mebibyte":                           {stdin: mebibyte, arguments: []string{"-f", "-"}, code: 1, message: "team: storage", fails: "10 problems"},
		"settings of repositories":             {stdin: `{"cacheLimitMB": 1}`, arguments: []string{"-f", "-", "--as=backup-repository"}, message: "cacheLimitMB: 1\n"},
		"no cluster":                           {code: 2, fails: "find the cluster"},
		"a file, of which names are looked up": {stdin: "{}", arguments: []string{"-f", "-", "--node=n"}, code: 2, fails: "find the cluster"},
		"no such file":                         {arguments: []string{"-f", "/nonexistent"}, code: 2, fails: "/nonexistent"},
		"a file of something else":             {stdin: "kind: Secret", arguments: []string{"-f", "-"}, code: 2, fails: "no ConfigMap, only Secret"},
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
