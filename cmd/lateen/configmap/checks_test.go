package configmap_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

// checkProblems returns the sections with a value that cannot be used.
func checkProblems(t *testing.T, problems []configmap.Problem) map[configmap.Section]bool {
	t.Helper()
	broken := map[configmap.Section]bool{}
	for _, problem := range problems {
		require.Contains(t, configmap.Sections(), problem.Section)
		if first, _, _ := strings.Cut(problem.Path, "."); slices.Contains(configmap.Sections(), configmap.Section(first)) {
			require.Equal(t, configmap.Section(first), problem.Section)
		}
		require.Contains(t, configmap.Reasons(), problem.Reason)
		require.NotEmpty(t, problem.Message)
		require.Less(t, len(problem.String()), 1000)
		require.NotContains(t, problem.String(), "\n")
		if problem.Reason != configmap.UnknownField && problem.Reason != configmap.Ignored {
			broken[problem.Section] = true
		}
	}
	return broken
}

// checkWithout requires that a value with an invalidating Problem has the same effect as no value. Nothing else gets
// lost with it.
func checkWithout(t *testing.T, text string, got configmap.Config, problems []configmap.Problem, nodeLabels map[string]string) {
	t.Helper()
	var document any
	require.NoError(t, json.Unmarshal([]byte(text), &document))
	for _, problem := range problems {
		if problem.Reason.Invalidates() {
			document = without(document, problem.Path)
		}
	}
	rest, err := json.Marshal(compact(document))
	require.NoError(t, err)
	want, _ := parse(string(rest), nodeLabels)
	require.Equal(t, want, got, "%s means another than %s", text, rest)
}

// dropped marks an element of a list until all invalid elements are removed.
type dropped struct{}

// without returns a document without the value at a path, or without the whole list element that contains it.
func without(at any, path string) any {
	switch at := at.(type) {
	case map[string]any:
		for name, value := range at {
			rest, below := strings.CutPrefix(path, name)
			switch {
			case !below:
			case rest == "":
				delete(at, name)
			case rest[0] == '.':
				at[name] = without(value, rest[1:])
			case rest[0] == '[':
				at[name] = without(value, rest)
			}
		}
	case []any:
		index, _, _ := strings.Cut(strings.TrimPrefix(path, "["), "]")
		if i, err := strconv.Atoi(index); err == nil && i < len(at) {
			at[i] = dropped{}
		}
	}
	return at
}

func compact(at any) any {
	switch at := at.(type) {
	case map[string]any:
		for name, value := range at {
			at[name] = compact(value)
		}
	case []any:
		return slices.DeleteFunc(at, func(value any) bool { return value == any(dropped{}) })
	}
	return at
}
