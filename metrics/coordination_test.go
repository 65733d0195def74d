package metrics_test

import (
	"testing"
	"time"
)

func TestSeriesOfTheCoordinatorStartAtZero(t *testing.T) {
	m, registry := newMetrics()
	c := m.Coordination("pods", "volumesnapshots")
	requireSeries(t, registry, `
		lateen_coordinator{node="node-1"} 0
		lateen_orphans_removed_total{resource="pods"} 0
		lateen_orphans_removed_total{resource="volumesnapshots"} 0
	`, "lateen_coordinator", "lateen_orphans_removed_total")
	c.SetCoordinator(true)
	c.OrphanRemoved("pods")
	requireSeries(t, registry, `
		lateen_coordinator{node="node-1"} 1
		lateen_orphans_removed_total{resource="pods"} 1
		lateen_orphans_removed_total{resource="volumesnapshots"} 0
	`, "lateen_coordinator", "lateen_orphans_removed_total")
	c.SetCoordinator(false)
	requireSeries(t, registry, `lateen_coordinator{node="node-1"} 0`, "lateen_coordinator")
}

func TestSeriesOfARepositoryStartAtZero(t *testing.T) {
	m, registry := newMetrics()
	m.Maintenance().Observe("app-default-kopia", time.Time{}, time.Hour)
	requireSeries(t, registry, `
		velero_repo_maintenance_success_total{repository_name="app-default-kopia"} 0
		velero_repo_maintenance_failure_total{repository_name="app-default-kopia"} 0
		lateen_maintenance_frequency_seconds{repository="app-default-kopia"} 3600
		lateen_maintenance_last_success_timestamp_seconds{repository="app-default-kopia"} 0
	`, "velero_repo_maintenance_success_total", "velero_repo_maintenance_failure_total",
		"lateen_maintenance_frequency_seconds", "lateen_maintenance_last_success_timestamp_seconds")
}
