package diagnose

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// evaluator holds the state of the whole cluster that the evaluation of one transfer needs.
type evaluator struct {
	*Snapshot
	flags    startup.Options // of the agents
	settings settings
	agents   map[string]view.Node // by node name
	inUse    map[string]int       // used slots, by node
	prepared map[string]int       // accepted and prepared transfers, by node; "" counts all of them
	places   map[string]int       // movers that start, wait or work for volumes of pods, by node; "" counts those of snapshots and claims
	restores bool                 // a restore waits in the admission queue
	limited  map[string]int       // transfers that are accepted and not moved yet, by storage class; "" counts all of them
}

func (s *Snapshot) evaluator() *evaluator {
	e := &evaluator{Snapshot: s, flags: s.options(), settings: s.readSettings(), agents: s.readAgents(), inUse: map[string]int{}, prepared: map[string]int{}, places: map[string]int{}, limited: map[string]int{}}
	for _, one := range s.transfers {
		if preparing := one.state.Phase.IsPreparing() && !one.state.Foreign; preparing || one.state.TakesSlot() {
			e.places[one.state.Home()]++
			e.limited[""]++
			if class := e.storageClass(one); class != "" && (one.state.Exposer != "" || !one.spec.Restores) { // of Velero's restores, agents do not know it
				e.limited[class]++
			}
		}
		switch {
		case one.state.TakesSlot():
			e.inUse[one.state.Node]++
		case one.state.Foreign:
		case one.state.Phase.IsPreparing():
			e.prepared[""]++
			if node := one.state.Home(); node != "" {
				e.prepared[node]++
			}
		}
	}
	for _, one := range s.transfers {
		e.restores = e.restores || one.spec.Restores && one.state.Phase.IsNew() && e.eligible(one) == nil
	}
	return e
}

// Report evaluates the snapshot.
func (s *Snapshot) Report() view.Report {
	e := s.evaluator()
	report := view.Report{
		Namespace: s.namespace, Time: s.now.UTC().Truncate(time.Second), Transfers: []view.Transfer{}, Ended: map[string]int{},
		Queue: view.Queue{Prepared: e.prepared[""], Limit: e.settings.movers.PrepareQueueLength}, Coordinator: s.coordinator(),
		PriorityClasses: e.priorityClasses(), Repositories: s.maintenance(), MaintenanceJobs: e.settings.jobs, ConfigProblems: e.settings.problems,
		AgentsWithOlderConfig: e.annotated(api.AnnotationConfigNotApplied), Unreadable: append([]view.Unreadable{}, s.unreadable...),
	}
	for _, one := range s.transfers {
		if one.state.Foreign && one.state.Phase.Terminal() {
			continue
		}
		if one.state.Phase.Terminal() {
			report.Ended[string(one.state.Phase)]++
			if one.state.Settled() {
				continue
			}
		}
		row := e.transfer(one)
		if row.WaitsFor != nil && row.WaitsFor.Reason == view.WaitQueue {
			report.Queue.Waiting++
		}
		report.Transfers = append(report.Transfers, row)
	}
	report.Nodes = e.nodesOf(report.Transfers)
	return report
}

func (e *evaluator) transfer(of *subject) view.Transfer {
	state, mover := of.state, e.mover(of)
	row := view.Transfer{
		Kind: of.kind, Name: of.meta.GetName(), Volume: of.volume(), Node: state.Node, Phase: string(of.state.Phase), Since: since(of, mover).UTC(),
		BytesDone: state.Progress.Done, BytesTotal: state.Progress.Total, Restarts: state.Restarts, WaitsFor: e.waits(of),
	}
	if took := e.now.Sub(state.StartedAt); state.Phase.HasStarted() && took >= time.Second {
		row.BytesPerSecond = int64(float64(state.Progress.Done) / took.Seconds())
	}
	if mover != nil {
		row.PriorityClass, row.Priority = mover.Spec.PriorityClassName, mover.Spec.Priority
	}
	return row
}

// since returns the start of the phase, as far as the resource and its mover show it.
func since(of *subject, mover *corev1.Pod) time.Time {
	state, at := of.state, of.state.CreatedAt
	switch of.state.Phase {
	case transfer.Accepted:
		at = state.AcceptedAt
	case transfer.Prepared:
		at = state.AcceptedAt
		if started := runningSince(mover); started.After(at) {
			at = started
		}
	case transfer.InProgress, transfer.Canceling:
		at = state.StartedAt
	case transfer.Completed, transfer.Failed, transfer.Canceled:
		at = state.CompletedAt
	case transfer.New:
	}
	if at.IsZero() {
		return state.CreatedAt
	}
	return at
}

// nodesOf returns the nodes that have an agent or one of these transfers.
func (e *evaluator) nodesOf(transfers []view.Transfer) []view.Node {
	all := maps.Clone(e.agents)
	for _, one := range transfers {
		if _, known := all[one.Node]; !known && one.Node != "" && e.sees(view.ResourcePods, e.namespace) {
			all[one.Node] = view.Node{Name: one.Node, Agent: view.AgentNone, Message: "no node-agent pod on this node"}
		}
	}
	nodes := slices.SortedFunc(maps.Values(all), func(a, b view.Node) int { return cmp.Compare(a.Name, b.Name) })
	for i := range nodes {
		nodes[i].InUse, nodes[i].Limit = e.inUse[nodes[i].Name], e.settings.slots(e.nodes[nodes[i].Name])
	}
	return append([]view.Node{}, nodes...)
}
