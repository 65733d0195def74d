package metrics

import "github.com/prometheus/client_golang/prometheus"

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
