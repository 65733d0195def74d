package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// InitialLabels makes the series of everything that can be counted exist at 0, because a rate needs a series
// from before the first event. Each argument lists the label values that can be.
type InitialLabels struct {
	Consumers, ClassReasons []string
	Sections, ConfigReasons []string
	Kinds, LostReasons      []string
	Ends                    []End
}

// End is a terminal phase and one of the reasons for it.
type End struct{ Phase, Reason string }

// Init makes the series exist.
func (m *Metrics) Init(start InitialLabels) {
	if m == nil {
		return
	}
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

// PriorityClass says which class a consumer was told to use and which it uses.
func (m *Metrics) PriorityClass(consumer, configured, effective string) {
	if m == nil {
		return
	}
	m.classInfo.DeletePartialMatch(prometheus.Labels{"consumer": consumer})
	m.classInfo.WithLabelValues(consumer, configured, effective).Set(1)
}

// PriorityClassFallback counts a class that was not used.
func (m *Metrics) PriorityClassFallback(consumer, reason string) {
	if m != nil {
		m.classFallbacks.WithLabelValues(consumer, reason).Inc()
	}
}

// ConfigFallback counts a problem in the configuration.
func (m *Metrics) ConfigFallback(section, reason string) {
	if m != nil {
		m.configFallbacks.WithLabelValues(section, reason).Inc()
	}
}

// ConfigProblems shows how many problems a section of the configuration has, by reason, as it was read last.
func (m *Metrics) ConfigProblems(section string, counts map[string]int) {
	if m == nil {
		return
	}
	for reason, count := range counts {
		m.configProblems.WithLabelValues(section, reason).Set(float64(count))
	}
}

// Finished counts a transfer that reached a terminal phase.
func (m *Metrics) Finished(kind, phase, reason string) {
	if m != nil {
		m.finished.WithLabelValues(kind, phase, reason).Inc()
	}
}

// BytesMoved counts the bytes of a transfer that completed. They are what a mover says, so a negative
// number, for which a counter would panic, is counted as none.
func (m *Metrics) BytesMoved(kind string, bytes int64) {
	if m != nil && bytes > 0 {
		m.bytesMoved.WithLabelValues(kind).Add(float64(bytes))
	}
}

// ObservePhase observes how long a transfer was in the phase that it left.
func (m *Metrics) ObservePhase(kind, phase string, took time.Duration) {
	if m != nil {
		m.phaseDuration.WithLabelValues(kind, phase).Observe(took.Seconds())
	}
}

// MoverRestarted counts a mover that was lost and is replaced.
func (m *Metrics) MoverRestarted(kind, reason string) {
	if m != nil {
		m.moverRestarts.WithLabelValues(kind, reason).Inc()
	}
}

// Slots shows the places for movers on this node; inUse is asked at each scrape.
func (m *Metrics) Slots(limit int, inUse func() int) {
	if m == nil {
		return
	}
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lateen_slots_limit", Help: "Movers that may run on this node at once."}, func() float64 { return float64(limit) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lateen_slots_in_use", Help: "Movers that run on this node."}, func() float64 { return float64(inUse()) }),
	)
}

// Queue shows how many transfers may be prepared at once in the whole cluster; 0 is no limit.
func (m *Metrics) Queue(limit int) {
	if m == nil {
		return
	}
	queue := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lateen_prepare_queue_limit", Help: "Transfers of the whole cluster that may be Accepted or Prepared at once, 0 for no limit.",
	})
	queue.Set(float64(limit))
	m.registry.MustRegister(queue)
}
