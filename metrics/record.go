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
	m.classInfo.DeletePartialMatch(prometheus.Labels{"consumer": consumer})
	m.classInfo.WithLabelValues(consumer, configured, effective).Set(1)
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

// ObservePhase records how long a transfer was in the phase that it left, in seconds.
func (m *Metrics) ObservePhase(kind, phase string, took time.Duration) {
	m.phaseDuration.WithLabelValues(kind, phase).Observe(took.Seconds())
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
