package reconcile

import (
	"k8s.io/client-go/tools/cache"

	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Count returns how many of these resources this agent owns in each phase, and their ages in seconds. Every phase has
// an entry.
func (t *TransferReconciler[T]) Count(objects []T) []metrics.Count {
	now := t.Clock.Now()
	counts := make([]metrics.Count, 0, len(transfer.Phases()))
	place := map[transfer.Phase]int{}
	for _, phase := range transfer.Phases() {
		place[phase] = len(counts)
		counts = append(counts, metrics.Count{Kind: t.Kind.Name, Phase: string(phase), Terminal: phase.Terminal(), Unattended: map[string]int{}})
	}
	for _, object := range objects {
		state := t.Kind.Get(object)
		at, known := place[state.Phase]
		if !known || !state.Foreign && !t.counts(state) {
			continue
		}
		count := &counts[at]
		if state.Foreign {
			if t.Agent.IsCoordinator() {
				count.Foreign++
				count.ForeignAge = max(count.ForeignAge, now.Sub(state.CreatedAt).Seconds())
			}
			continue
		}
		count.Transfers++
		count.OldestAge = max(count.OldestAge, now.Sub(state.CreatedAt).Seconds())
		since := phaseSince(state)
		if since.IsZero() {
			since = state.CreatedAt // another client wrote the phase without its time
		}
		count.MaxPhaseAge = max(count.MaxPhaseAge, now.Sub(since).Seconds())
		if state.TakesSlot() {
			count.Silence = max(count.Silence, t.local.silent(cache.MetaObjectToName(object).String(), now).Seconds())
		}
		if state.Node != "" && state.Node != t.Agent.Node && !count.Terminal {
			count.Unattended[state.Node]++
		}
	}
	return counts
}

// counts reports whether this agent counts a resource, so that a sum over all agents is correct. The coordinator
// counts resources without a node and those of unavailable agents.
func (t *TransferReconciler[T]) counts(state transfer.State) bool {
	if state.Node == t.Agent.Node {
		return true
	}
	return t.Agent.IsCoordinator() && (state.Node == "" || t.Agent.Unavailable(state.Node))
}
