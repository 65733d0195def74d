package metrics

import "github.com/prometheus/client_golang/prometheus"

// Coordination counts the work of the coordinator for the whole cluster. A nil *Coordination counts nothing.
type Coordination struct {
	coordinator prometheus.Gauge
	orphans     *prometheus.CounterVec
}

// Coordination registers its metrics, all at 0. resources are those that can have orphans. Call it at most once.
func (m *Metrics) Coordination(resources ...string) *Coordination {
	if m == nil {
		return nil
	}
	coordinator := gauge("lateen_coordinator", "1 if this agent is the coordinator and its caches are complete, else 0.", "node")
	orphans := counter("lateen_orphans_removed_total", "Deleted objects whose transfer no longer exists, by resource.", "resource")
	m.registry.MustRegister(coordinator, orphans)
	for _, resource := range resources {
		orphans.WithLabelValues(resource)
	}
	return &Coordination{coordinator: coordinator.WithLabelValues(m.node), orphans: orphans}
}

// SetCoordinator sets whether this agent is the coordinator.
func (c *Coordination) SetCoordinator(leads bool) {
	if c == nil {
		return
	}
	value := 0.
	if leads {
		value = 1
	}
	c.coordinator.Set(value)
}

// OrphanRemoved counts a removed orphan of that resource.
func (c *Coordination) OrphanRemoved(resource string) {
	if c != nil {
		c.orphans.WithLabelValues(resource).Inc()
	}
}
