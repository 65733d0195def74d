package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

func TestMaintenanceProblemsAreSetAndCleared(t *testing.T) {
	global := configmap.Problem{Section: configmap.SectionMaintenance, Path: "global", Reason: configmap.InvalidValue}
	own := configmap.Problem{Section: configmap.SectionMaintenance, Path: "one", Reason: configmap.UnknownField}
	repositories := map[string]bool{"velero/one": true, "velero/two": true}
	exists := func(key string) bool { return repositories[key] }
	current := jobProblems{}

	require.Equal(t, []configmap.Problem{global, own}, current.replace("velero/one", []configmap.Problem{global, own}, exists))
	require.Empty(t, current.replace("velero/two", []configmap.Problem{global}, exists), "it was reported of another repository")
	require.ElementsMatch(t, []configmap.Problem{global, own}, current.all())

	require.Empty(t, current.replace("velero/one", nil, exists), "corrected")
	require.Equal(t, []configmap.Problem{global}, current.all(), "the job of the other repository uses it")
	require.Equal(t, []configmap.Problem{own}, current.replace("velero/one", []configmap.Problem{own}, exists), "it is there again")

	delete(repositories, "velero/two")
	require.Empty(t, current.replace("velero/one", nil, exists))
	require.Empty(t, current.all(), "nothing counts of a repository that does not exist")
}
