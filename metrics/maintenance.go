package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Maintenance exports the maintenance of backup repositories.
type Maintenance struct {
	succeeded, failed *prometheus.CounterVec // with the names of Velero's server
	duration          *prometheus.HistogramVec
	lastSuccess       *prometheus.GaugeVec
	frequency         *prometheus.GaugeVec
	running, due      prometheus.Gauge
}

// Maintenance registers its metrics. Call it at most once.
func (m *Metrics) Maintenance() *Maintenance {
	f := m.factory
	return &Maintenance{
		succeeded:   f.counter("velero_repo_maintenance_success_total", "Maintenance jobs that succeeded.", "repository_name"),
		failed:      f.counter("velero_repo_maintenance_failure_total", "Maintenance jobs that failed.", "repository_name"),
		duration:    f.histogram("velero_repo_maintenance_duration_seconds", "Duration of maintenance jobs, failed ones included.", veleroBuckets(), "repository_name"),
		lastSuccess: f.gauge("lateen_maintenance_last_success_timestamp_seconds", "Unix time of the last successful maintenance of a repository, 0 for none; reported by the coordinator, for repositories that can be maintained.", "repository"),
		frequency:   f.gauge("lateen_maintenance_frequency_seconds", "Maintenance interval of a repository; reported by the coordinator, for repositories that can be maintained.", "repository"),
		running:     f.gauge("lateen_maintenance_running", "Unfinished maintenance jobs; reported by the coordinator, other agents report 0.").WithLabelValues(),
		due:         f.gauge("lateen_maintenance_due", "Repositories that are due for maintenance and have no job; reported by the coordinator, other agents report 0.").WithLabelValues(),
	}
}

// Ended counts a finished run of a repository and its duration.
func (m *Maintenance) Ended(repository string, succeeded bool, took time.Duration) {
	if succeeded {
		m.succeeded.WithLabelValues(repository).Inc()
	} else {
		m.failed.WithLabelValues(repository).Inc()
	}
	m.duration.WithLabelValues(repository).Observe(took.Seconds())
}

// Observe exports a repository that can be maintained: its counters, when it was last maintained (0 for never), and
// the frequency.
func (m *Maintenance) Observe(repository string, last time.Time, frequency time.Duration) {
	m.succeeded.WithLabelValues(repository)
	m.failed.WithLabelValues(repository)
	m.lastSuccess.WithLabelValues(repository).Set(float64(max(last.Unix(), 0)))
	m.frequency.WithLabelValues(repository).Set(frequency.Seconds())
}

// Excluded drops the series that would report a repository as overdue although it cannot be maintained. Its counters
// stay.
func (m *Maintenance) Excluded(repository string) {
	m.lastSuccess.DeleteLabelValues(repository)
	m.frequency.DeleteLabelValues(repository)
}

// DeleteRepository drops the series of a deleted repository.
func (m *Maintenance) DeleteRepository(repository string) {
	m.succeeded.DeleteLabelValues(repository)
	m.failed.DeleteLabelValues(repository)
	m.duration.DeleteLabelValues(repository)
	m.Excluded(repository)
}

// Load sets the number of running jobs, and of due repositories without a job.
func (m *Maintenance) Load(running, due int) {
	m.running.Set(float64(running))
	m.due.Set(float64(due))
}

// Reset drops what only the coordinator exports, at the end of its term. The next coordinator exports it.
func (m *Maintenance) Reset() {
	m.lastSuccess.Reset()
	m.frequency.Reset()
	m.Load(0, 0)
}
