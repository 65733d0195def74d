package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Count is how many transfers of a kind are in a phase, and how old the oldest of them is.
type Count struct {
	Kind, Phase string
	Transfers   int
	OldestAge   float64 // seconds; only of phases that do not last for ever
	Terminal    bool
}

// transfers shows what the caches hold at the time of the scrape: a gauge that is never incremented
// cannot drift.
type transfers struct {
	look      func() []Count
	count     *prometheus.Desc
	oldestAge *prometheus.Desc
}

// Transfers shows what look returns; it is called at each scrape.
func (m *Metrics) Transfers(look func() []Count) {
	if m == nil {
		return
	}
	labels := []string{"kind", "phase"}
	m.registry.MustRegister(&transfers{
		look:      look,
		count:     prometheus.NewDesc("lateen_transfers", "Transfers that this agent owns, by kind and phase.", labels, nil),
		oldestAge: prometheus.NewDesc("lateen_transfer_oldest_age_seconds", "Age of the oldest transfer in a phase that is not terminal, 0 if there is none.", labels, nil),
	})
}

// Describe implements prometheus.Collector.
func (t *transfers) Describe(out chan<- *prometheus.Desc) {
	out <- t.count
	out <- t.oldestAge
}

// Collect implements prometheus.Collector.
func (t *transfers) Collect(out chan<- prometheus.Metric) {
	for _, seen := range t.look() {
		out <- prometheus.MustNewConstMetric(t.count, prometheus.GaugeValue, float64(seen.Transfers), seen.Kind, seen.Phase) //nolint:promlinter // it cannot read a Desc; a test lints what is gathered
		if !seen.Terminal {
			out <- prometheus.MustNewConstMetric(t.oldestAge, prometheus.GaugeValue, seen.OldestAge, seen.Kind, seen.Phase) //nolint:promlinter // likewise
		}
	}
}
