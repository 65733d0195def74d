package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/config"
)

func TestMaintenanceProblemsAreSetAndCleared(t *testing.T) {
	global := config.Problem{Section: config.SectionMaintenance, Path: "global", Reason: config.InvalidValue}
	own := config.Problem{Section: config.SectionMaintenance, Path: "one", Reason: config.UnknownField}
	repositories := map[string]bool{"velero/one": true, "velero/two": true}
	exists := func(key string) bool { return repositories[key] }
	current := jobProblems{}

	require.Equal(t, []config.Problem{global, own}, current.replace("velero/one", []config.Problem{global, own}, exists))
	require.Empty(t, current.replace("velero/two", []config.Problem{global}, exists), "it was reported of another repository")
	require.ElementsMatch(t, []config.Problem{global, own}, current.all())

	require.Empty(t, current.replace("velero/one", nil, exists), "corrected")
	require.Equal(t, []config.Problem{global}, current.all(), "the job of the other repository uses it")
	require.Equal(t, []config.Problem{own}, current.replace("velero/one", []config.Problem{own}, exists), "it is there again")

	delete(repositories, "velero/two")
	require.Empty(t, current.replace("velero/one", nil, exists))
	require.Empty(t, current.all(), "nothing counts of a repository that does not exist")
}
