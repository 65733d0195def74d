package agent

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/metrics"
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

func TestAProblemOfJobsIsReportedOnceAndExported(t *testing.T) {
	registry, events := prometheus.NewRegistry(), record.NewFakeRecorder(2)
	p := jobPlanner{
		assembly: &assembly{Options: Options{Metrics: metrics.New(registry, "v1", "n1")}, recorder: events},
		problems: jobProblems{}, exists: func(string) bool { return true },
	}
	problem := configmap.Problem{Section: configmap.SectionMaintenance, Path: "global", Reason: configmap.InvalidValue}
	for _, name := range []string{"one", "two"} {
		p.reportProblems(t.Context(), &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{Name: name}}, []configmap.Problem{problem})
	}
	require.Len(t, events.Events, 1)
	require.Contains(t, <-events.Events, "Warning MaintenanceConfigProblem global: ")
	const labels = `{reason="invalid_value",section="repoMaintenance"} 1`
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(
		"# HELP lateen_config_fallbacks_total Reported configuration problems, by section and reason.\n"+
			"# TYPE lateen_config_fallbacks_total counter\nlateen_config_fallbacks_total"+labels+"\n"), "lateen_config_fallbacks_total"))
	shown, err := testutil.GatherAndCount(registry, "lateen_config_problems")
	require.NoError(t, err)
	require.Len(t, configmap.Reasons(), shown)
}
