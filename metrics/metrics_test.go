package metrics_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/metrics"
)

func start() metrics.InitialLabels {
	return metrics.InitialLabels{
		Consumers: []string{"data-mover", "maintenance-job"}, ClassReasons: []string{"not_found", "rejected"},
		Sections: []string{"podLabels"}, ConfigReasons: []string{"invalid_value", "unknown_field"},
		Kinds: []string{"podvolumebackup"}, LostReasons: []string{"evicted"},
		Ends: []metrics.End{{Phase: "Completed", Reason: "completed"}, {Phase: "Failed", Reason: "mover_failed"}},
	}
}

func newMetrics() (*metrics.Metrics, *prometheus.Registry) {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry, "v0.1.0", "node-1")
	m.Init(start())
	return m, registry
}

// requireSeries compares all series of these metrics, without HELP and TYPE lines.
func requireSeries(t *testing.T, registry *prometheus.Registry, want string, names ...string) {
	t.Helper()
	gathered, err := testutil.GatherAndCount(registry, names...)
	require.NoError(t, err)
	require.Equal(t, len(strings.Split(strings.TrimSpace(want), "\n")), gathered)
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(explained(t, registry, want)), names...))
}

// explained adds the registered HELP and TYPE lines, which GatherAndCompare needs.
func explained(t *testing.T, registry *prometheus.Registry, series string) string {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	var text strings.Builder
	for _, family := range families {
		var lines []string
		for line := range strings.Lines(strings.TrimSpace(series) + "\n") {
			if name, _, _ := strings.Cut(strings.TrimSpace(line), "{"); name == family.GetName() || strings.HasPrefix(strings.TrimSpace(line), family.GetName()+" ") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		if len(lines) > 0 {
			text.WriteString("# HELP " + family.GetName() + " " + family.GetHelp() + "\n")
			text.WriteString("# TYPE " + family.GetName() + " " + strings.ToLower(family.GetType().String()) + "\n")
			text.WriteString(strings.Join(lines, "\n") + "\n")
		}
	}
	return text.String()
}

func TestEverySeriesStartsAtZero(t *testing.T) {
	_, registry := newMetrics()
	requireSeries(t, registry, `
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
		lateen_mover_restarts_total{kind="podvolumebackup",reason="evicted"} 0
		podVolume_pod_volume_backup_enqueue_count{node="node-1"} 0
		podVolume_pod_volume_backup_dequeue_count{node="node-1"} 0
	`, "lateen_priority_class_fallbacks_total", "lateen_config_fallbacks_total", "lateen_config_problems", "lateen_transfers_finished_total",
		"lateen_bytes_moved_total", "lateen_mover_restarts_total",
		"podVolume_pod_volume_backup_enqueue_count", "podVolume_pod_volume_backup_dequeue_count")
}

func TestConfigurationProblemsAreThoseOfTheLastRead(t *testing.T) {
	m, registry := newMetrics()
	m.ConfigProblems("podLabels", map[string]int{"invalid_value": 2, "unknown_field": 1})
	m.ConfigProblems("podLabels", map[string]int{"invalid_value": 0, "unknown_field": 1})
	requireSeries(t, registry, `
		lateen_config_problems{reason="invalid_value",section="podLabels"} 0
		lateen_config_problems{reason="unknown_field",section="podLabels"} 1
	`, "lateen_config_problems")
}

func TestCounters(t *testing.T) {
	m, registry := newMetrics()
	m.PriorityClassFallback("data-mover", "not_found")
	m.ConfigFallback("podLabels", "invalid_value")
	m.Finished("podvolumebackup", "Completed", "completed")
	m.Finished("podvolumebackup", "Completed", "completed")
	m.BytesMoved("podvolumebackup", 1000)
	m.BytesMoved("podvolumebackup", 24)
	m.BytesMoved("podvolumebackup", -1) // a mover's report may be wrong, and must not crash the agent
	m.MoverRestarted("podvolumebackup", "evicted")
	requireSeries(t, registry, `
		lateen_priority_class_fallbacks_total{consumer="data-mover",reason="not_found"} 1
		lateen_priority_class_fallbacks_total{consumer="data-mover",reason="rejected"} 0
		lateen_priority_class_fallbacks_total{consumer="maintenance-job",reason="not_found"} 0
		lateen_priority_class_fallbacks_total{consumer="maintenance-job",reason="rejected"} 0
		lateen_config_fallbacks_total{reason="invalid_value",section="podLabels"} 1
		lateen_config_fallbacks_total{reason="unknown_field",section="podLabels"} 0
		lateen_config_rejected 0
		lateen_transfers_finished_total{kind="podvolumebackup",phase="Completed",reason="completed"} 2
		lateen_transfers_finished_total{kind="podvolumebackup",phase="Failed",reason="mover_failed"} 0
		lateen_bytes_moved_total{kind="podvolumebackup"} 1024
		lateen_mover_restarts_total{kind="podvolumebackup",reason="evicted"} 1
	`, "lateen_priority_class_fallbacks_total", "lateen_config_fallbacks_total", "lateen_config_rejected", "lateen_transfers_finished_total",
		"lateen_bytes_moved_total", "lateen_mover_restarts_total")
}

func TestPriorityClassInfoIsOneSeriesPerConsumer(t *testing.T) {
	m, registry := newMetrics()
	m.PriorityClass("data-mover", "velero-low", "velero-low")
	m.PriorityClass("maintenance-job", "", "")
	m.PriorityClass("data-mover", "velero-low", "")
	requireSeries(t, registry, `
		lateen_priority_class_info{configured="velero-low",consumer="data-mover",effective=""} 1
		lateen_priority_class_info{configured="",consumer="maintenance-job",effective=""} 1
	`, "lateen_priority_class_info")
}

func TestPhaseDurationReachesFromATenthToFourHours(t *testing.T) {
	m, registry := newMetrics()
	m.ObservePhase("podvolumebackup", "Accepted", 50*time.Millisecond)
	m.ObservePhase("podvolumebackup", "Accepted", 4*time.Hour)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "lateen_transfer_phase_duration_seconds" {
			histogram := family.GetMetric()[0].GetHistogram()
			require.EqualValues(t, 2, histogram.GetSampleCount())
			buckets := histogram.GetBucket()
			var bounds []float64
			for _, bucket := range buckets {
				bounds = append(bounds, bucket.GetUpperBound())
			}
			require.Equal(t, []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400}, bounds)
			require.EqualValues(t, 1, buckets[0].GetCumulativeCount())
			require.EqualValues(t, 2, buckets[len(buckets)-1].GetCumulativeCount())
			return
		}
	}
	require.Fail(t, "lateen_transfer_phase_duration_seconds is not gathered")
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
	`, "podVolume_pod_volume_backup_enqueue_count", "podVolume_pod_volume_backup_dequeue_count", "podVolume_pod_volume_operation_latency_seconds_gauge")
	count := func() int {
		n, err := testutil.GatherAndCount(registry, "podVolume_pod_volume_operation_latency_seconds", "podVolume_pod_volume_operation_latency_seconds_gauge")
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 4, count())
	for i := range 498 {
		m.BackupCompleted("operation", "velero/later", fmt.Sprintf("later-%d", i), time.Second)
	}
	require.Equal(t, 1000, count(), "two metrics of 500 backups")
	for _, name := range []string{"last", "very-last"} {
		m.BackupCompleted("operation", "velero/later", name, time.Second)
	}
	require.Equal(t, 1000, count(), "the oldest made room")
	requireSeries(t, registry, `podVolume_pod_volume_backup_dequeue_count{node="node-1"} 502`, "podVolume_pod_volume_backup_dequeue_count")
	families, err := registry.Gather()
	require.NoError(t, err)
	require.NotContains(t, fmt.Sprint(families), `"pvb-1"`)
	require.NotContains(t, fmt.Sprint(families), `"pvb-2"`)
	require.Contains(t, fmt.Sprint(families), `"later-0"`)
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
	veleros := 0
	for _, problem := range problems {
		require.True(t, strings.HasPrefix(problem.Metric, "podVolume_"), "%s: %s", problem.Metric, problem.Text)
		veleros++
	}
	require.Positive(t, veleros, "the linter sees Velero's names")
}

func TestBuildInfo(t *testing.T) {
	_, registry := newMetrics()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "lateen_build_info" {
			labels := family.GetMetric()[0].GetLabel()
			require.Equal(t, "goversion", labels[0].GetName())
			require.Equal(t, "v0.1.0", labels[1].GetValue())
			return
		}
	}
	require.Fail(t, "lateen_build_info is not gathered")
}

func TestNoMetricsCountNothing(t *testing.T) {
	var m *metrics.Metrics
	m.Init(start())
	m.PriorityClass("data-mover", "a", "a")
	m.PriorityClassFallback("data-mover", "not_found")
	m.ConfigFallback("podLabels", "invalid_value")
	m.Finished("podvolumebackup", "Completed", "completed")
	m.BytesMoved("podvolumebackup", 1)
	m.ObservePhase("podvolumebackup", "New", time.Second)
	m.MoverRestarted("podvolumebackup", "evicted")
	m.Slots(func() int { return 1 }, func() int { return 0 })
	m.Queue(0)
	m.ConfigHash(7)
	m.Transfers(func() []metrics.Count { return nil })
	m.BackupStarted()
	m.BackupCompleted("operation", "backup", "name", time.Second)
	require.Nil(t, m.Workqueues())
	require.Equal(t, http.DefaultTransport, m.Transport(http.DefaultTransport, clocktesting.NewFakePassiveClock(time.Time{})))
}
