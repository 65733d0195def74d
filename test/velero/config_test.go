package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/vmware-tanzu/velero/pkg/types"
)

// Every field of the configuration of Velero's version that is pinned here is known to Lateen, which says "unknown field" of all others: a
// new version's field fails this test by its name (D31). What the values are does not matter, so that nothing has to be listed here.
func TestLateenKnowsEveryFieldOfTheConfiguration(t *testing.T) {
	lateen := filepath.Join(os.Getenv("LATEEN_BIN"), "lateen")
	for kind, configuration := range map[string]reflect.Type{
		"node-agent":           reflect.TypeFor[types.NodeAgentConfigs](),
		"repo-maintenance-job": reflect.TypeFor[types.JobConfigs](),
	} {
		t.Run(kind, func(t *testing.T) {
			for name, value := range members(configuration) { // one by one: of many, only some are listed
				text, err := json.Marshal(map[string]any{name: value})
				if err != nil {
					t.Fatal(err)
				}
				check := exec.CommandContext(t.Context(), lateen, "check", "--as", kind, "-f", "-")
				check.Stdin = bytes.NewReader(text)
				said, err := check.Output() // 1: the examples are not what the fields want
				if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) || !bytes.Contains(said, []byte("In effect")) {
					t.Fatalf("check %s: %v: %s", text, err, said)
				}
				if bytes.Contains(said, []byte("unknown field")) {
					t.Errorf("teach cmd/lateen/config what Velero has: %s\n%s", text, said)
				}
			}
		})
	}
}

// members are the fields of a struct by their names in JSON, those of embedded structs among them.
func members(of reflect.Type) map[string]any {
	all := map[string]any{}
	for _, field := range reflect.VisibleFields(of) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" && field.IsExported() {
			all[name] = example(field.Type)
		}
	}
	return all
}

// example is a value with every field that its type has.
func example(of reflect.Type) any {
	switch of.Kind() {
	case reflect.Pointer:
		return example(of.Elem())
	case reflect.Struct:
		return members(of)
	case reflect.Slice:
		return []any{example(of.Elem())}
	case reflect.Map:
		return map[string]any{"example": example(of.Elem())}
	case reflect.String:
		return "example"
	case reflect.Bool:
		return true
	default:
		return 1
	}
}
