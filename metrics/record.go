package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// InitialLabels lists the label values whose series Init creates at 0. A rate needs a series from before the first
// event.
type InitialLabels struct {
	Consumers, ClassReasons []string
	Sections, ConfigReasons []string
	Kinds, LostReasons      []string
	Ends                    []End
}

// End is a terminal phase and one of the reasons for it.
type End struct{ Phase, Reason string }

// Init creates the series at 0.
func (m *Metrics) Init(start InitialLabels) {
	for _, consumer := range start.Consumers {
		for _, reason := range start.ClassReasons {
			m.classFallbacks.WithLabelValues(consumer, reason)
		}
	}
	for _, section := range start.Sections {
		for _, reason := range start.ConfigReasons {
			m.configFallbacks.WithLabelValues(section, reason)
			m.configProblems.WithLabelValues(section, reason)
		}
	}
	m.configRejected.WithLabelValues()
	for _, kind := range start.Kinds {
		m.bytesMoved.WithLabelValues(kind)
		for _, reason := range start.LostReasons {
			m.moverRestarts.WithLabelValues(kind, reason)
		}
		for _, end := range start.Ends {
			m.finished.WithLabelValues(kind, end.Phase, end.Reason)
		}
	}
}

// PriorityClass exports the configured and the effective class of a consumer.
func (m *Metrics) PriorityClass(consumer, configured, effective string) {
	m.ForgetPriorityClass(consumer)
	m.classInfo.WithLabelValues(consumer, configured, effective).Set(1)
}

// ForgetPriorityClass drops the classes of a consumer.
func (m *Metrics) ForgetPriorityClass(consumer string) {
	m.classInfo.DeletePartialMatch(prometheus.Labels{"consumer": consumer})
}

// PriorityClassFallback counts a configured class that was not used.
func (m *Metrics) PriorityClassFallback(consumer, reason string) {
	m.classFallbacks.WithLabelValues(consumer, reason).Inc()
}

// ConfigFallback counts a problem in the configuration.
func (m *Metrics) ConfigFallback(section, reason string) {
	m.configFallbacks.WithLabelValues(section, reason).Inc()
}

// ConfigProblems exports the number of problems in a section of the last read configuration, by reason.
func (m *Metrics) ConfigProblems(section string, counts map[string]int) {
	for reason, count := range counts {
		m.configProblems.WithLabelValues(section, reason).Set(float64(count))
	}
}

// ConfigHash exports the hash of the effective configuration. There is no series before the first call.
func (m *Metrics) ConfigHash(hash uint64) {
	m.configHash.WithLabelValues().Set(float64(hash))
}

// ConfigRejected exports whether the node-agent ConfigMap was edited to a configuration that cannot be used.
func (m *Metrics) ConfigRejected(rejected bool) {
	m.configRejected.WithLabelValues().Set(boolean(rejected))
}

// Finished counts a transfer that reached a terminal phase.
func (m *Metrics) Finished(kind, phase, reason string) {
	m.finished.WithLabelValues(kind, phase, reason).Inc()
}

// BytesMoved counts the bytes of a completed transfer. The mover reports them, so a negative number is ignored: a
// counter would panic.
func (m *Metrics) BytesMoved(kind string, bytes int64) {
	if bytes > 0 {
		m.bytesMoved.WithLabelValues(kind).Add(float64(bytes))
	}
}

// ObservePhase records how long a transfer was in the phase that it left, in seconds; 0 if clocks of nodes differ by more than that.
func (m *Metrics) ObservePhase(kind, phase string, took time.Duration) {
	m.phaseDuration.WithLabelValues(kind, phase).Observe(max(took, 0).Seconds())
}

// MoverRestarted counts a lost mover that is replaced.
func (m *Metrics) MoverRestarted(kind, reason string) {
	m.moverRestarts.WithLabelValues(kind, reason).Inc()
}

// Slots exports the limit of movers on this node and the slots in use; it calls both functions at each scrape.
func (m *Metrics) Slots(limit, inUse func() int) {
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{Name: "lateen_slots_limit", Help: "Limit of movers running on this node at once."}, func() float64 { return float64(limit()) })
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{Name: "lateen_slots_in_use", Help: "Movers running on this node."}, func() float64 { return float64(inUse()) })
}

// Queue exports how many transfers of the whole cluster may be prepared at once; 0 is no limit.
func (m *Metrics) Queue(limit int) {
	m.factory.gauge("lateen_prepare_queue_limit", "Limit of Accepted and Prepared transfers in the cluster, 0 for no limit.").WithLabelValues().Set(float64(limit))
}

// TransferLimits exports how many transfers may be accepted and not moved yet, in the whole cluster and of each storage class; 0 is
// no limit. The limits of an earlier call end.
func (m *Metrics) TransferLimits(cluster int, storageClasses map[string]int) {
	m.transferLimits.Reset()
	m.transferLimits.WithLabelValues("").Set(float64(cluster))
	for class, limit := range storageClasses {
		m.transferLimits.WithLabelValues(class).Set(float64(limit))
	}
}

// Coordination counts the work of the coordinator for the whole cluster.
type Coordination struct {
	coordinator prometheus.Gauge
	orphans     *prometheus.CounterVec
}

// Coordination registers its metrics, all at 0. resources are those that can have orphans. Call it at most once.
func (m *Metrics) Coordination(resources ...string) *Coordination {
	coordinator := m.factory.gauge("lateen_coordinator", "1 if this agent is the coordinator and its caches are complete, else 0.", "node")
	orphans := m.factory.counter("lateen_orphans_removed_total", "Deleted objects whose transfer no longer exists, by resource.", "resource")
	for _, resource := range resources {
		orphans.WithLabelValues(resource)
	}
	return &Coordination{coordinator: coordinator.WithLabelValues(m.node), orphans: orphans}
}

// SetCoordinator sets whether this agent is the coordinator.
func (c *Coordination) SetCoordinator(leads bool) {
	c.coordinator.Set(boolean(leads))
}

// OrphanRemoved counts a removed orphan of that resource.
func (c *Coordination) OrphanRemoved(resource string) {
	c.orphans.WithLabelValues(resource).Inc()
}

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

// Count is the number of transfers of a kind in a phase, with the ages of the oldest ones.
type Count struct {
	Kind, Phase string
	Transfers   int
	OldestAge   float64        // seconds since the oldest was created; not exported for terminal phases
	MaxPhaseAge float64        // longest time in this phase, in seconds; of a terminal one, until its clean-up is complete
	Silence     float64        // longest time for which a running mover reported nothing new, in seconds
	Foreign     int            // transfers for another data mover, not counted in Transfers
	ForeignAge  float64        // seconds since the oldest of those was created
	Unattended  map[string]int // non-terminal transfers of nodes whose agent is unavailable, by node
	Terminal    bool
}

// phaseNew is the phase of a transfer that no agent has accepted.
const phaseNew = "New"

// transfers collects from the caches at the time of the scrape. A gauge that is never incremented cannot drift.
type transfers struct {
	observe     func() []Count
	node        string
	count       *prometheus.Desc
	oldestAge   *prometheus.Desc
	maxPhaseAge *prometheus.Desc
	unattended  *prometheus.Desc
	silence     *prometheus.Desc
	foreign     *prometheus.Desc
	untaken     *prometheus.Desc
}

// Transfers exports the counts that observe returns; it calls observe at each scrape.
func (m *Metrics) Transfers(observe func() []Count) {
	labels := []string{"kind", "phase"}
	m.factory.MustRegister(&transfers{
		observe:     observe,
		node:        m.node,
		count:       prometheus.NewDesc("lateen_transfers", "Transfers that this agent owns, by kind and phase.", labels, nil),
		oldestAge:   prometheus.NewDesc("lateen_transfer_oldest_age_seconds", "Age of the oldest transfer in a non-terminal phase, by kind and phase; 0 if there is none.", labels, nil),
		maxPhaseAge: prometheus.NewDesc("lateen_transfer_max_phase_age_seconds", "Longest time of a transfer in a non-terminal phase, by kind and phase; Prepared counts from Accepted, Canceling from InProgress.", labels, nil),
		unattended:  prometheus.NewDesc("lateen_unattended_transfers", "Non-terminal transfers on nodes without a Ready agent; reported by the coordinator, other agents report 0 for their node.", []string{"node"}, nil),
		silence:     prometheus.NewDesc("lateen_mover_max_silence_seconds", "Longest time since a running mover moved a byte or sent an Event, by kind; 0 without a running mover.", labels[:1], nil),
		foreign:     prometheus.NewDesc("lateen_foreign_transfers", "Non-terminal transfers for another data mover than Velero's, by kind; reported by the coordinator, other agents report 0.", labels[:1], nil),
		untaken:     prometheus.NewDesc("lateen_foreign_transfer_oldest_new_age_seconds", "Age of the oldest New transfer for another data mover, by kind; 0 if there is none; reported by the coordinator, other agents report 0.", labels[:1], nil),
	})
}

// Describe implements prometheus.Collector.
func (t *transfers) Describe(out chan<- *prometheus.Desc) {
	out <- t.count
	out <- t.oldestAge
	out <- t.maxPhaseAge
	out <- t.unattended
	out <- t.silence
	out <- t.foreign
	out <- t.untaken
}

// Collect implements prometheus.Collector.
func (t *transfers) Collect(out chan<- prometheus.Metric) {
	send := func(gauge *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(gauge, prometheus.GaugeValue, value, labels...) //nolint:promlinter // it cannot read a Desc; a test lints what is gathered
	}
	unattended := map[string]int{t.node: 0} // so that a series always exists
	foreign, untaken, silence := map[string]int{}, map[string]float64{}, map[string]float64{}
	for _, count := range t.observe() {
		send(t.count, float64(count.Transfers), count.Kind, count.Phase)
		send(t.maxPhaseAge, count.MaxPhaseAge, count.Kind, count.Phase)
		if !count.Terminal {
			send(t.oldestAge, count.OldestAge, count.Kind, count.Phase)
			foreign[count.Kind] += count.Foreign
			silence[count.Kind] = max(silence[count.Kind], count.Silence)
		}
		if count.Phase == phaseNew {
			untaken[count.Kind] = count.ForeignAge
		}
		for node, transfers := range count.Unattended {
			unattended[node] += transfers
		}
	}
	for node, transfers := range unattended {
		send(t.unattended, float64(transfers), node)
	}
	for kind, transfers := range foreign {
		send(t.foreign, float64(transfers), kind)
		send(t.silence, silence[kind], kind)
		send(t.untaken, untaken[kind], kind)
	}
}
