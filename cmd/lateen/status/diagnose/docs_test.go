package diagnose_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/status/view"
)

// documentation returns the documentation of these commands.
func documentation(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/command-line.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "\n## lateen status and explain\n")
	require.True(t, found)
	reported, _, _ := strings.Cut(after, "\n## ")
	return reported
}

// TestDocumentationShowsTheOutput compares docs/command-line.md with the golden files, which match the output of
// the code.
func TestDocumentationShowsTheOutput(t *testing.T) {
	for _, name := range []string{"a-busy-cluster.txt", "timeline-of-a-wait-for-a-slot.txt"} {
		want, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(t, err)
		require.Contains(t, documentation(t), "```text\n"+string(want)+"```\n", "of testdata/%s", name)
	}
}

// TestDocumentationNamesTheFieldsAndTheReasons keeps the list of JSON fields and reasons complete for users of the
// JSON output.
func TestDocumentationNamesTheFieldsAndTheReasons(t *testing.T) {
	description := []string{
		view.WaitAgent, view.WaitCoordinator, view.WaitQueue, view.WaitSlot, view.WaitPod, view.WaitConsumer, view.WaitRefused, view.WaitSnapshot,
		view.WaitVolume, view.WaitScheduler, view.WaitContainer, view.WaitMover, view.WaitRebind, view.WaitCancel, view.WaitDataMover, view.WaitCleanUp,
	}
	for _, of := range []reflect.Type{reflect.TypeFor[view.Report](), reflect.TypeFor[view.Transfer]()} {
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			description = append(description, name)
		}
	}
	for _, word := range description {
		require.Contains(t, documentation(t), "`"+word+"`")
	}
}
