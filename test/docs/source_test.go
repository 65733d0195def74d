package docs

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/cancel"
	"github.com/lateen-project/lateen/cmd/lateen/check"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/cmd/lateen/verify"
	"github.com/lateen-project/lateen/exposer/objects"
)

// sources are the packages of the product by folder: the text of their files without tests.
func sources(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, top := range []string{"cmd", "deploy", "exposer", "informers", "metrics", "reconcile"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			folder, err := filepath.Rel(root, filepath.Dir(path))
			all[folder] += string(text)
			return err
		}))
	}
	return all
}

// source is the text of the whole product.
func source(t *testing.T) string {
	t.Helper()
	return strings.Join(slices.Collect(maps.Values(sources(t))), "")
}

// first are the first groups of all matches.
func first(pattern, text string) (all []string) {
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return all
}

// The table of packages has each package of the product, and no other.
func TestEveryPackageIsInTheArchitecture(t *testing.T) {
	_, table, found := strings.Cut(page(t, "architecture").text, "\n## Packages\n")
	require.True(t, found)
	require.ElementsMatch(t, slices.Collect(maps.Keys(sources(t))), first("(?m)^\\| `([a-z/]+)` \\|", table))
}

func TestEveryReasonOfAnEventIsDescribed(t *testing.T) {
	product := source(t)
	require.Empty(t, first(`([rR]ecorder\.Eventf?\([^"\n]*, corev1\.EventType\w+, ".*)`, product), "an Event's reason is a constant named Event…")
	var described []string
	for _, row := range rows(page(t, "metrics").section(t, "Events")) {
		described = append(described, codes(row[1])...)
	}
	known := first(`\bEvent\w+ += "(\w+)"`, product)
	require.NotEmpty(t, known)
	require.Equal(t, sorted(known), sorted(described), "docs/metrics.md: the second column of Events has their reasons")
}

// Every message that docs/troubleshooting.md quotes is one of the program.
func TestMessagesInTroubleshootingExist(t *testing.T) {
	product, quoted := source(t), 0
	for _, row := range rows(page(t, "troubleshooting").section(t, "Troubleshooting")) {
		require.Len(t, row, 3, row[0])
		for _, part := range codes(row[0]) {
			quoted++
			if !strings.Contains(product, part) { // which is too long to print
				require.Failf(t, "no message of the program has what docs/troubleshooting.md quotes", "%q", part)
			}
		}
	}
	require.NotZero(t, quoted)
}

// A loss reason that is not listed has no series before it happens. The alert names the reason, and its runbook says what to do.
func TestEveryLossReasonIsListedAndSetAndInTheRunbook(t *testing.T) {
	all := sources(t)
	declared := first(`\bLost\w+ +LossReason = "(\w+)"`, all["exposer/objects"])
	_, runbook, found := strings.Cut(page(t, "runbooks").text, "\n## LateenMoversRestart\n")
	require.True(t, found)
	runbook, _, _ = strings.Cut(runbook, "\n## ")
	var listed []string
	for _, reason := range objects.LostReasons() {
		listed = append(listed, string(reason))
		require.Contains(t, runbook, "`"+reason+"`", "the runbook of LateenMoversRestart lacks it")
	}
	require.ElementsMatch(t, declared, listed)
	for _, name := range first(`\b(Lost\w+) +LossReason = "`, all["exposer/objects"]) {
		uses := strings.Count(all["exposer/objects"]+all["reconcile/transfer"], name)
		require.Greater(t, uses, 2, "no mover is lost for %s: it is only declared and listed", name)
	}
}

// outputs are values of the outputs that have a JSON schema, by the name of the command.
func outputs() map[string]any {
	return map[string]any{"status": view.Report{}, "explain": view.Timeline{}, "check": check.Output{}, "cancel": cancel.Output{}, "verify": verify.Output{}}
}

// schemaOf derives the JSON schema of the output of a command from its Go types and their comments. The schemas in docs are
// open: later versions may add fields.
func schemaOf(t *testing.T, command string, open bool) []byte {
	t.Helper()
	reflector := jsonschema.Reflector{Anonymous: true, AllowAdditionalProperties: open}
	for _, folder := range []string{"cmd/lateen/status/view", "cmd/lateen/check", "cmd/lateen/check/preflight", "cmd/lateen/cancel", "cmd/lateen/verify", "cmd/lateen/config", "exposer/objects"} {
		const here = "github.com/lateen-project/lateen/test/docs"
		require.NoError(t, reflector.AddGoComments(here, filepath.Join(root, folder), jsonschema.WithFullComment()))
	}
	for name, comment := range reflector.CommentMap {
		reflector.CommentMap[name] = oneSpaced(comment)
	}
	reflected := reflector.Reflect(outputs()[command])
	reflected.Title = "lateen " + command + " -o json"
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	require.NoError(t, encoder.Encode(reflected))
	return text.Bytes()
}

func schemaFile(command string) string { return filepath.Join(root, "docs/schema", command+".json") }

func TestTheSchemasAreThoseOfTheTypes(t *testing.T) {
	for command := range outputs() {
		want := schemaOf(t, command, true)
		if *update {
			require.NoError(t, os.WriteFile(schemaFile(command), want, 0o644))
		}
		have, err := os.ReadFile(schemaFile(command))
		require.NoError(t, err)
		require.Equal(t, string(want), string(have), "run: cd test && go test ./docs -run Schemas -update")
	}
}

// valid requires that an output matches the schema, and has no field besides.
func valid(t *testing.T, command, output string) {
	t.Helper()
	closed, err := validator.UnmarshalJSON(bytes.NewReader(schemaOf(t, command, false)))
	require.NoError(t, err)
	compiler := validator.NewCompiler()
	compiler.AssertFormat()
	require.NoError(t, compiler.AddResource(command, closed))
	compiled, err := compiler.Compile(command)
	require.NoError(t, err)
	value, err := validator.UnmarshalJSON(bytes.NewReader([]byte(output)))
	require.NoError(t, err, output)
	require.NoError(t, compiled.Validate(value), output)
}

// outputsMatchTheirSchemas checks what the program prints on a cluster with Lateen, and the golden file of a busy one.
func outputsMatchTheirSchemas(t *testing.T, s *shell) {
	t.Helper()
	busy, err := os.ReadFile(filepath.Join(root, "cmd/lateen/status/diagnose/testdata/a-busy-cluster.json"))
	require.NoError(t, err)
	valid(t, "status", string(busy))
	valid(t, "status", s.run("status", "lateen status -o json"))
	valid(t, "check", s.run("check", "lateen check -o json"))
	valid(t, "check", s.run("check of a file", `printf '{"loadConcurrency":{"globalConfig":"2"}, "podLabel":{}}' | lateen check -f - -o json 2>/dev/null || [ $? = 1 ]`))
	s.run("a backup of a pod that does not exist", `kubectl apply -f - <<END
apiVersion: velero.io/v1
kind: PodVolumeBackup
metadata: {name: nightly-x7k2p, namespace: velero}
spec:
  node: node-1
  volume: data
  backupStorageLocation: default
  repoIdentifier: none
  pod: {kind: Pod, namespace: app, name: postgres-0, uid: 1d1b5b2e-0000-4000-8000-000000000000}
END
kubectl -n velero wait podvolumebackup/nightly-x7k2p --for=jsonpath='{.status.phase}'=Failed --timeout=60s`)
	valid(t, "explain", s.run("explain", "lateen explain pvb/nightly-x7k2p -o json"))
	refused := s.run("check in a namespace that refuses movers", `kubectl label namespace velero pod-security.kubernetes.io/enforce=baseline --overwrite >/dev/null
lateen check --pre -o json || [ $? = 1 ]`)
	require.Contains(t, refused, "pod-security.kubernetes.io/enforce=privileged")
	valid(t, "cancel", s.run("cancel", "lateen cancel pvb/nightly-x7k2p -o json 2>/dev/null"))
}

// configSchema compiles the JSON schema of the value of a ConfigMap, which a section of docs/configuration.md describes.
func configSchema(t *testing.T, section string) *validator.Schema {
	t.Helper()
	compiler := validator.NewCompiler()
	var file string
	for title := range schemas() {
		name := strings.TrimPrefix(title, "The ConfigMap of --")
		text, err := os.ReadFile(schemaFile(name))
		require.NoError(t, err)
		value, err := validator.UnmarshalJSON(bytes.NewReader(text))
		require.NoError(t, err)
		require.NoError(t, compiler.AddResource(name+".json", value))
		if title == section {
			file = name + ".json"
		}
	}
	compiled, err := compiler.Compile(file)
	require.NoError(t, err)
	return compiled
}

// The schema accepts what the parser accepts, but for null and other capitals, and refuses unknown fields and wrong types.
func TestTheSchemasOfConfigMapsAgreeWithTheParser(t *testing.T) {
	schema, refused := configSchema(t, "The ConfigMap of --node-agent-configmap"), 0
	files, err := filepath.Glob(filepath.Join(root, "cmd/lateen/config/testdata/corpus/*.json"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		value, err := validator.UnmarshalJSON(bytes.NewReader(text))
		if name := filepath.Base(file); err != nil || name == "good-null-sections.json" || name == "good-field-in-other-capitals.json" {
			continue
		}
		_, problems := config.Parse(map[string]string{"config": string(text)}, nil)
		wrong := slices.ContainsFunc(problems, func(problem config.Problem) bool {
			return problem.Reason == config.WrongType || problem.Reason == config.UnknownField
		})
		switch err := schema.Validate(value); {
		case len(problems) == 0:
			require.NoError(t, err, file)
		case wrong:
			refused++
			require.Error(t, err, file)
		}
	}
	require.Greater(t, refused, 20)
}
