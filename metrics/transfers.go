package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Count is the number of transfers of a kind in a phase, with the ages of the oldest ones.
type Count struct {
	Kind, Phase string
	Transfers   int
	OldestAge   float64        // seconds since the oldest was created; not exported for terminal phases
	MaxPhaseAge float64        // longest time in this phase, in seconds; not exported for terminal phases
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
		if !count.Terminal {
			send(t.oldestAge, count.OldestAge, count.Kind, count.Phase)
			send(t.maxPhaseAge, count.MaxPhaseAge, count.Kind, count.Phase)
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
