package docs

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/check"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
)

// outputs are values of the outputs that have a JSON schema, by the name of the command.
func outputs() map[string]any {
	return map[string]any{"status": view.Report{}, "explain": view.Timeline{}, "check": check.Output{}}
}

// schemaOf derives the JSON schema of the output of a command from its Go types and their comments. The schemas in docs are
// open: later versions may add fields.
func schemaOf(t *testing.T, command string, open bool) []byte {
	t.Helper()
	reflector := jsonschema.Reflector{Anonymous: true, AllowAdditionalProperties: open}
	for _, folder := range []string{"cmd/lateen/status/view", "cmd/lateen/check", "cmd/lateen/configmap", "exposer/objects"} {
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

// What the program prints on a real control plane, and the golden file of a busy cluster, match the schemas.
func TestOutputsMatchTheirSchemasOnKubernetes(t *testing.T) {
	busy, err := os.ReadFile(filepath.Join(root, "cmd/lateen/status/diagnose/testdata/a-busy-cluster.json"))
	require.NoError(t, err)
	valid(t, "status", string(busy))
	const lateen = "<!-- on a cluster with Lateen -->"
	s := newShell(t)
	s.run(lateen, places()[lateen])
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
}
