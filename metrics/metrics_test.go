package metrics_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/metrics"
)

func newMetrics() (*metrics.Metrics, *prometheus.Registry) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry, "v0.1.0", "node-1")
	m.Init(metrics.InitialLabels{
		Consumers: []string{"data-mover", "maintenance-job"}, ClassReasons: []string{"not_found", "rejected"},
		Sections: []string{"podLabels"}, ConfigReasons: []string{"invalid_value", "unknown_field"},
		Kinds: []string{"podvolumebackup"}, LostReasons: []string{"evicted"},
		Ends: []metrics.End{{Phase: "Completed", Reason: "completed"}, {Phase: "Failed", Reason: "mover_failed"}},
	})
	return m, registry
}

// series returns the series of these metrics, as Prometheus reads them.
func series(registry *prometheus.Registry, names ...string) (all []string) {
	response := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	for line := range strings.Lines(response.Body.String()) {
		if name, _, _ := strings.Cut(strings.ReplaceAll(line, " ", "{"), "{"); slices.Contains(names, name) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// requireSeries compares all series of the metrics that want has.
func requireSeries(t *testing.T, registry *prometheus.Registry, want string) {
	t.Helper()
	var lines, names []string
	for line := range strings.Lines(strings.TrimSpace(want)) {
		line = strings.TrimSpace(line)
		name, _, _ := strings.Cut(strings.ReplaceAll(line, " ", "{"), "{")
		lines, names = append(lines, line), append(names, name)
	}
	require.ElementsMatch(t, lines, series(registry, names...))
}

func TestEverySeriesStartsAtZeroAndIsCounted(t *testing.T) {
	m, registry := newMetrics()
	const atZero = `
		lateen_priority_class_fallbacks_total{consumer="data-mover",reason="not_found"} 0
		lateen_priority_class_fallbacks_total{consumer="data-mover",reason="rejected"} 0
		lateen_priority_class_fallbacks_total{consumer="maintenance-job",reason="not_found"} 0
		lateen_priority_class_fallbacks_total{consumer="maintenance-job",reason="rejected"} 0
		lateen_config_fallbacks_total{reason="invalid_value",section="podLabels"} 0
		lateen_config_fallbacks_total{reason="unknown_field",section="podLabels"} 0
		lateen_config_problems{reason="invalid_value",section="podLabels"} 0
		lateen_config_problems{reason="unknown_field",section="podLabels"} 0
		lateen_transfers_finished_total{kind="podvolumebackup",phase="Completed",reason="completed"} 0
		lateen_transfers_finished_total{kind="podvolumebackup",phase="Failed",reason="mover_failed"} 0
		lateen_bytes_moved_total{kind="podvolumebackup"} 0
		lateen_config_rejected 0
		lateen_mover_restarts_total{kind="podvolumebackup",reason="evicted"} 0
		podVolume_pod_volume_backup_enqueue_count{node="node-1"} 0
		podVolume_pod_volume_backup_dequeue_count{node="node-1"} 0
		podVolume_data_upload_success_total{node="node-1"} 0
	`
	requireSeries(t, registry, atZero)
	m.ConfigProblems("podLabels", map[string]int{"invalid_value": 2, "unknown_field": 1})
	m.ConfigProblems("podLabels", map[string]int{"invalid_value": 0, "unknown_field": 1})
	m.PriorityClassFallback("data-mover", "not_found")
	m.ConfigFallback("podLabels", "invalid_value")
	m.Finished("podvolumebackup", "Completed", "completed")
	m.Finished("podvolumebackup", "Completed", "completed")
	m.BytesMoved("podvolumebackup", 1023)
	m.BytesMoved("podvolumebackup", 1)
	m.BytesMoved("podvolumebackup", -1) // a mover's report may be wrong, and must not crash the agent
	m.MoverRestarted("podvolumebackup", "evicted")
	requireSeries(t, registry, strings.NewReplacer(
		`consumer="data-mover",reason="not_found"} 0`, `consumer="data-mover",reason="not_found"} 1`,
		`fallbacks_total{reason="invalid_value",section="podLabels"} 0`, `fallbacks_total{reason="invalid_value",section="podLabels"} 1`,
		`problems{reason="unknown_field",section="podLabels"} 0`, `problems{reason="unknown_field",section="podLabels"} 1`,
		`reason="completed"} 0`, `reason="completed"} 2`,
		`lateen_bytes_moved_total{kind="podvolumebackup"} 0`, `lateen_bytes_moved_total{kind="podvolumebackup"} 1024`,
		`reason="evicted"} 0`, `reason="evicted"} 1`,
	).Replace(atZero))
}

func TestPriorityClassInfoIsOneSeriesPerConsumer(t *testing.T) {
	m, registry := newMetrics()
	m.PriorityClass("data-mover", "velero-low", "velero-low")
	m.PriorityClass("maintenance-job", "", "")
	m.PriorityClass("data-mover", "velero-low", "")
	requireSeries(t, registry, `
		lateen_priority_class_info{configured="velero-low",consumer="data-mover",effective=""} 1
		lateen_priority_class_info{configured="",consumer="maintenance-job",effective=""} 1
	`)
}

func TestADurationOfClocksThatDifferIsNotNegative(t *testing.T) {
	m, registry := newMetrics()
	m.ObservePhase("podvolumebackup", "New", -time.Second)
	requireSeries(t, registry, `lateen_transfer_phase_duration_seconds_sum{kind="podvolumebackup",phase="New"} 0`)
}

func TestBucketsOfDurations(t *testing.T) {
	m, registry := newMetrics()
	m.ObservePhase("podvolumebackup", "Accepted", time.Second)
	m.Maintenance().Ended("repository", true, time.Second)
	m.Workqueues().NewLatencyMetric("any").Observe(1)
	_, err := m.Transport(answers{err: io.EOF}, clocktesting.NewFakePassiveClock(time.Unix(0, 0))).RoundTrip(&http.Request{}) //nolint:bodyclose // none
	require.ErrorIs(t, err, io.EOF)
	for name, want := range map[string]string{
		"lateen_transfer_phase_duration_seconds":   "0.1 0.25 0.5 1 2.5 5 10 30 60 300 600 1800 3600 7200 14400",
		"velero_repo_maintenance_duration_seconds": "60 300 600 900 1800 3600 7200 10800 14400",
		"rest_client_request_duration_seconds":     "0.001 0.004 0.016 0.064 0.256 1.024 4.096 16.384",
		"workqueue_queue_duration_seconds":         "1e-05 0.0001 0.001 0.01 0.1 1 10 100",
	} {
		var bounds []string
		for _, line := range series(registry, name+"_bucket") {
			_, bound, _ := strings.Cut(line, `le="`)
			bound, _, _ = strings.Cut(bound, `"`)
			bounds = append(bounds, bound)
		}
		require.Equal(t, want+" +Inf", strings.Join(bounds, " "), name)
	}
}

func TestVelerosMetricsOfTheLastBackupsAreKept(t *testing.T) {
	m, registry := newMetrics()
	m.BackupStarted()
	m.BackupStarted()
	m.BackupCompleted("pvb-1-bsl-app-kopia-backup", "velero/nightly", "pvb-1", 90*time.Second)
	m.BackupCompleted("pvb-2-bsl-app-kopia-backup", "velero/nightly", "pvb-2", 1500*time.Millisecond)
	requireSeries(t, registry, `
		podVolume_pod_volume_backup_enqueue_count{node="node-1"} 2
		podVolume_pod_volume_backup_dequeue_count{node="node-1"} 2
		podVolume_pod_volume_operation_latency_seconds_gauge{backupName="velero/nightly",node="node-1",operation="pvb-1-bsl-app-kopia-backup",pod_volume_backup="pvb-1"} 90
		podVolume_pod_volume_operation_latency_seconds_gauge{backupName="velero/nightly",node="node-1",operation="pvb-2-bsl-app-kopia-backup",pod_volume_backup="pvb-2"} 1.5
		podVolume_pod_volume_operation_latency_seconds_sum{backupName="velero/nightly",node="node-1",operation="pvb-1-bsl-app-kopia-backup",pod_volume_backup="pvb-1"} 90
		podVolume_pod_volume_operation_latency_seconds_sum{backupName="velero/nightly",node="node-1",operation="pvb-2-bsl-app-kopia-backup",pod_volume_backup="pvb-2"} 1.5
	`)
	count := func() int {
		n, err := testutil.GatherAndCount(registry, "podVolume_pod_volume_operation_latency_seconds", "podVolume_pod_volume_operation_latency_seconds_gauge")
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 4, count())
	for i := range 500 {
		m.BackupCompleted("operation", "velero/later", fmt.Sprintf("later-%d", i), time.Second)
	}
	require.Equal(t, 1000, count(), "two metrics of 500 backups, the oldest made room")
	requireSeries(t, registry, `podVolume_pod_volume_backup_dequeue_count{node="node-1"} 502`)
	kept := strings.Join(series(registry, "podVolume_pod_volume_operation_latency_seconds_gauge"), "\n")
	require.NotContains(t, kept, `"pvb-1"`)
	require.NotContains(t, kept, `"pvb-2"`)
	require.Contains(t, kept, `"later-0"`)
}

// TestLint gathers one series of every metric. Velero's names are exempt.
func TestLint(t *testing.T) {
	m, registry := newMetrics()
	m.PriorityClass("data-mover", "velero-low", "velero-low")
	m.ObservePhase("podvolumebackup", "New", time.Second)
	m.Slots(func() int { return 1 }, func() int { return 0 })
	m.Queue(0)
	m.ConfigHash(7)
	m.Transfers(func() []metrics.Count { return []metrics.Count{{Kind: "podvolumebackup", Phase: "New"}} })
	m.BackupCompleted("operation", "velero/nightly", "pvb-1", time.Second)
	m.Workqueues().NewDepthMetric("podvolumebackup")
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.NotEmpty(t, problems, "the linter sees Velero's names")
	for _, problem := range problems {
		require.True(t, strings.HasPrefix(problem.Metric, "podVolume_"), "%s: %s", problem.Metric, problem.Text)
	}
}

func TestBuildInfo(t *testing.T) {
	_, registry := newMetrics()
	require.Regexp(t, `^\[lateen_build_info{goversion="go.*",version="v0.1.0"} 1]$`, series(registry, "lateen_build_info"))
}

type answers struct {
	response *http.Response
	err      error
}

func (a answers) RoundTrip(*http.Request) (*http.Response, error) { return a.response, a.err }

func TestRequestsAreCountedPerAgent(t *testing.T) {
	m, registry := newMetrics()
	_, other := newMetrics()
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	send := func(method string, next answers) {
		request, err := http.NewRequestWithContext(t.Context(), method, "https://192.0.2.1/api", nil)
		require.NoError(t, err)
		response, err := m.Transport(next, clock).RoundTrip(request)
		require.Equal(t, next.response, response)
		require.ErrorIs(t, err, next.err)
		if response != nil {
			require.NoError(t, response.Body.Close())
		}
	}
	answer := func(code int) answers {
		return answers{response: &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(""))}}
	}
	send(http.MethodGet, answer(200))
	send(http.MethodGet, answer(200))
	send(http.MethodPatch, answer(409))
	send(http.MethodGet, answers{err: errors.New("connection refused")})
	requireSeries(t, registry, `
		rest_client_requests_total{code="200",method="GET"} 2
		rest_client_requests_total{code="409",method="PATCH"} 1
		rest_client_requests_total{code="error",method="GET"} 1
		rest_client_request_duration_seconds_count{verb="GET"} 3
		rest_client_request_duration_seconds_count{verb="PATCH"} 1
	`) // the label is called verb, as in Kubernetes
	require.Empty(t, series(other, "rest_client_requests_total"))
}

func TestWorkqueuesHaveTheNamesOfKubernetes(t *testing.T) {
	m, registry := newMetrics()
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Hour, time.Hour), // no retry during the test
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "podvolumebackup", MetricsProvider: m.Workqueues()})
	defer queue.ShutDown()
	queue.Add("a")
	queue.Add("b")
	key, _ := queue.Get()
	queue.Done(key)
	queue.AddRateLimited("c")
	requireSeries(t, registry, `
		workqueue_depth{name="podvolumebackup"} 1
		workqueue_adds_total{name="podvolumebackup"} 2
		workqueue_retries_total{name="podvolumebackup"} 1
	`)
	for _, name := range []string{"queue_duration_seconds_count", "work_duration_seconds_count", "unfinished_work_seconds", "longest_running_processor_seconds"} {
		require.Len(t, series(registry, "workqueue_"+name), 1, name)
	}
}

func TestSeriesOfTheCoordinatorStartAtZero(t *testing.T) {
	m, registry := newMetrics()
	c := m.Coordination("pods", "volumesnapshots")
	requireSeries(t, registry, `
		lateen_coordinator{node="node-1"} 0
		lateen_orphans_removed_total{resource="pods"} 0
		lateen_orphans_removed_total{resource="volumesnapshots"} 0
	`)
	c.SetCoordinator(true)
	c.OrphanRemoved("pods")
	requireSeries(t, registry, `
		lateen_coordinator{node="node-1"} 1
		lateen_orphans_removed_total{resource="pods"} 1
		lateen_orphans_removed_total{resource="volumesnapshots"} 0
	`)
	c.SetCoordinator(false)
	requireSeries(t, registry, `lateen_coordinator{node="node-1"} 0`)
}

func TestSeriesOfARepositoryStartAtZero(t *testing.T) {
	m, registry := newMetrics()
	maintenance := m.Maintenance()
	maintenance.Observe("app-default-kopia", time.Time{}, time.Hour)
	requireSeries(t, registry, `
		velero_repo_maintenance_success_total{repository_name="app-default-kopia"} 0
		velero_repo_maintenance_failure_total{repository_name="app-default-kopia"} 0
		lateen_maintenance_frequency_seconds{repository="app-default-kopia"} 3600
		lateen_maintenance_last_success_timestamp_seconds{repository="app-default-kopia"} 0
	`)
	maintenance.Ended("app-default-kopia", true, time.Second)
	maintenance.DeleteRepository("app-default-kopia")
	require.Empty(t, series(registry, "velero_repo_maintenance_success_total", "velero_repo_maintenance_failure_total",
		"lateen_maintenance_frequency_seconds", "lateen_maintenance_last_success_timestamp_seconds", "velero_repo_maintenance_duration_seconds_count"))
}

func TestGaugesFollowTheCaches(t *testing.T) {
	m, registry := newMetrics()
	inUse, waiting := 3, 2
	m.Slots(func() int { return 4 }, func() int { return inUse })
	m.Queue(7)
	m.Transfers(func() []metrics.Count {
		return []metrics.Count{
			{Kind: "podvolumebackup", Phase: "New", Transfers: waiting, OldestAge: 12.5, MaxPhaseAge: 3, Unattended: map[string]int{"node-2": waiting}},
			{Kind: "datadownload", Phase: "New", Unattended: map[string]int{"node-2": 1}},
			{Kind: "podvolumebackup", Phase: "Completed", Transfers: 100, Terminal: true},
		}
	})
	requireSeries(t, registry, `
		lateen_slots_in_use 3
		lateen_slots_limit 4
		lateen_prepare_queue_limit 7
		lateen_unattended_transfers{node="node-1"} 0
		lateen_unattended_transfers{node="node-2"} 3
		lateen_transfers{kind="podvolumebackup",phase="New"} 2
		lateen_transfers{kind="podvolumebackup",phase="Completed"} 100
		lateen_transfers{kind="datadownload",phase="New"} 0
		lateen_transfer_oldest_age_seconds{kind="podvolumebackup",phase="New"} 12.5
		lateen_transfer_oldest_age_seconds{kind="datadownload",phase="New"} 0
		lateen_transfer_max_phase_age_seconds{kind="podvolumebackup",phase="New"} 3
		lateen_transfer_max_phase_age_seconds{kind="podvolumebackup",phase="Completed"} 0
		lateen_transfer_max_phase_age_seconds{kind="datadownload",phase="New"} 0
	`)
	inUse, waiting = 0, 7
	require.Subset(t, series(registry, "lateen_slots_in_use", "lateen_unattended_transfers", "lateen_transfers"), []string{
		"lateen_slots_in_use 0", `lateen_unattended_transfers{node="node-2"} 8`, `lateen_transfers{kind="podvolumebackup",phase="New"} 7`,
	})
}

func TestSilenceAndForeignTransfersArePerKindUntilTheyAreTerminal(t *testing.T) {
	m, registry := newMetrics()
	m.Transfers(func() []metrics.Count {
		return []metrics.Count{
			{Kind: "dataupload", Phase: "New", Foreign: 2, ForeignAge: 90},
			{Kind: "dataupload", Phase: "InProgress", Foreign: 1, ForeignAge: 900, Silence: 20}, {Kind: "dataupload", Phase: "Canceling", Silence: 90},
			{Kind: "dataupload", Phase: "Completed", Foreign: 100, ForeignAge: 9000, Terminal: true},
			{Kind: "datadownload", Phase: "New"}, {Kind: "datadownload", Phase: "InProgress"},
		}
	})
	requireSeries(t, registry, `
		lateen_mover_max_silence_seconds{kind="dataupload"} 90
		lateen_mover_max_silence_seconds{kind="datadownload"} 0
		lateen_foreign_transfers{kind="dataupload"} 3
		lateen_foreign_transfers{kind="datadownload"} 0
		lateen_foreign_transfer_oldest_new_age_seconds{kind="dataupload"} 90
		lateen_foreign_transfer_oldest_new_age_seconds{kind="datadownload"} 0
	`)
}
