package docs

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/check"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
)

// outputs are the types of the outputs that have a JSON schema, by the name of the command.
func outputs() map[string]reflect.Type {
	return map[string]reflect.Type{
		"status": reflect.TypeFor[view.Report](), "explain": reflect.TypeFor[view.Timeline](), "check": reflect.TypeFor[check.Output](),
	}
}

// schemaWriter derives a JSON schema from Go types and their comments.
type schemaWriter struct {
	comments map[string]string // of types and fields, such as Report.time
	defs     map[string]any
}

func newSchemaWriter(t *testing.T) schemaWriter {
	t.Helper()
	w := schemaWriter{map[string]string{}, map[string]any{}}
	for _, folder := range []string{"cmd/lateen/status/view", "cmd/lateen/check"} {
		paths, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
		require.NoError(t, err)
		for _, path := range paths {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			require.NoError(t, err)
			w.read(file)
		}
	}
	return w
}

// read collects the comments of the structs of a file.
func (w schemaWriter) read(file *ast.File) {
	for node := range ast.Preorder(file) {
		declared, is := node.(*ast.GenDecl)
		if !is || declared.Tok != token.TYPE {
			continue
		}
		for _, each := range declared.Specs {
			spec, is := each.(*ast.TypeSpec)
			if !is {
				continue
			}
			fields, is := spec.Type.(*ast.StructType)
			if !is {
				continue
			}
			w.comments[spec.Name.Name] = oneSpaced(declared.Doc.Text())
			for _, field := range fields.Fields.List {
				for _, name := range field.Names {
					w.comments[spec.Name.Name+"."+name.Name] = oneSpaced(field.Doc.Text() + field.Comment.Text())
				}
			}
		}
	}
}

// schema returns the schema of a type. Structs are references to definitions.
func (w schemaWriter) schema(of reflect.Type) map[string]any {
	switch {
	case of == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case of.Kind() == reflect.Pointer:
		return w.schema(of.Elem())
	case of.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": w.schema(of.Elem())}
	case of.Kind() == reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": w.schema(of.Elem())}
	case of.Kind() == reflect.Struct:
		if w.defs[of.Name()] == nil {
			w.defs[of.Name()] = true // ends a recursion
			w.defs[of.Name()] = w.object(of)
		}
		return map[string]any{"$ref": "#/$defs/" + of.Name()}
	case of.Kind() == reflect.String:
		return map[string]any{"type": "string"}
	case of.Kind() == reflect.Bool:
		return map[string]any{"type": "boolean"}
	case of.Kind() == reflect.Float64:
		return map[string]any{"type": "number"}
	default:
		return map[string]any{"type": "integer"}
	}
}

func (w schemaWriter) object(of reflect.Type) map[string]any {
	properties, required := map[string]any{}, []string{}
	for field := range of.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		property := w.schema(field.Type)
		if comment := w.comments[of.Name()+"."+field.Name]; comment != "" {
			property["description"] = comment
		}
		properties[name] = property
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	return map[string]any{"type": "object", "description": w.comments[of.Name()], "properties": properties, "required": required}
}

// written is the schema of the output of a command as the file in docs has it.
func written(t *testing.T, command string) []byte {
	t.Helper()
	w := newSchemaWriter(t)
	schema := w.schema(outputs()[command])
	schema["$schema"], schema["$defs"] = "https://json-schema.org/draft/2020-12/schema", w.defs
	schema["title"] = "lateen " + command + " -o json"
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	require.NoError(t, encoder.Encode(schema))
	return text.Bytes()
}

func schemaFile(command string) string { return filepath.Join(root, "docs/schema", command+".json") }

func TestTheSchemasAreThoseOfTheTypes(t *testing.T) {
	for command := range outputs() {
		want := written(t, command)
		if *update {
			require.NoError(t, os.WriteFile(schemaFile(command), want, 0o644))
		}
		have, err := os.ReadFile(schemaFile(command))
		require.NoError(t, err)
		require.Equal(t, string(want), string(have), "run: cd test && go test ./docs -run Schemas -update")
	}
}

// valid requires that an output matches the schema in docs, and has no field besides.
func valid(t *testing.T, command, output string) {
	t.Helper()
	text, err := os.ReadFile(schemaFile(command))
	require.NoError(t, err)
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	closeObjects(schema)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	require.NoError(t, compiler.AddResource(command, schema))
	compiled, err := compiler.Compile(command)
	require.NoError(t, err)
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(output))
	require.NoError(t, err, output)
	require.NoError(t, compiled.Validate(value), output)
}

// closeObjects forbids further fields in all objects with known fields. The schemas in docs allow them, because later
// versions may add some.
func closeObjects(schema any) {
	switch schema := schema.(type) {
	case map[string]any:
		if schema["properties"] != nil && schema["type"] == "object" {
			schema["additionalProperties"] = false
		}
		for _, each := range schema {
			closeObjects(each)
		}
	case []any:
		for _, each := range schema {
			closeObjects(each)
		}
	}
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
