package reconcile

import (
	"time"

	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Count is how many of these resources this agent owns in each phase; every phase is there.
func (t *Transfers[T]) Count(objects []T) []metrics.Count {
	now := t.Clock.Now()
	found := map[transfer.Phase]int{}
	oldest := map[transfer.Phase]time.Duration{}
	for _, object := range objects {
		state := t.Kind.Get(object)
		if state.Foreign || !t.counts(state) {
			continue
		}
		phase := phaseName(state.Phase)
		found[phase]++
		oldest[phase] = max(oldest[phase], now.Sub(state.CreatedAt))
	}
	counts := make([]metrics.Count, 0, len(transfer.Phases()))
	for _, phase := range transfer.Phases() {
		counts = append(counts, metrics.Count{
			Kind: t.Kind.Name, Phase: string(phase), Terminal: phase.Terminal(),
			Transfers: found[phase], OldestAge: oldest[phase].Seconds(),
		})
	}
	return counts
}

// counts tells whether this agent is the one that counts a resource, so that a sum over all agents is
// true: those of no node, and those of an absent agent, are the coordinator's.
func (t *Transfers[T]) counts(state transfer.State) bool {
	if state.Node == t.Agent.Node {
		return true
	}
	return t.Agent.Leads() && (state.Node == "" || t.Agent.Absent(state.Node))
}
