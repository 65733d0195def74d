package main

import (
	"context"
	"fmt"
	"time"

	"github.com/lateen-project/lateen/test/bench/figures"
	"github.com/lateen-project/lateen/test/testenv"
)

// uploads is fifty data uploads of 1 s over three nodes, which share a namespace: the work that Velero's own agent
// was measured with.
func (s *env) uploads(ctx context.Context) error {
	load := workload{layout: layout{name: "uploads", nodes: 3, slots: slots, movers: time.Second}, uploads: 50}
	seen, err := s.carry(ctx, load)
	if err != nil {
		return err
	}
	load.name, load.floor = "uploads-floor", true
	floor, err := s.carry(ctx, load)
	if err != nil {
		return err
	}
	show := s.panel("50 data uploads at once over 3 nodes with 4 slots each, movers of 1 s, pods start in 0.5 s")
	ideal := seen.rounds()
	show.makespan(seen, 2*ideal, fmt.Sprintf("2 x %g", ideal.Seconds()), "102", "4")
	show.turnovers("", seen.transitions, seen.ends, seen.slotsInAll())
	show.uploadCalls(seen, "<= 16", "19", "25")
	show.floor("1.06", "data upload", used{seen.transitions, seen.calls, seen.cpu}, used{floor.transitions, floor.calls, floor.cpu})
	return nil
}

// herd is the same uploads by twenty agents and by one, which has as many slots as they have together: what they ask
// of the API server for one upload is the same.
func (s *env) herd(ctx context.Context) error {
	const together = 20
	one, err := s.carry(ctx, workload{layout: layout{name: "alone", nodes: 1, slots: together, movers: time.Second}, uploads: 50})
	if err != nil {
		return err
	}
	show := s.panel("50 data uploads, 1 agent with 20 slots")
	show.makespan(one, 0, "", "", "")
	show.uploadCalls(one, "<= 16", "", "")
	all, err := s.carry(ctx, workload{layout: layout{name: "herd", nodes: together, slots: 1, movers: time.Second}, uploads: 50})
	if err != nil {
		return err
	}
	show = s.panel("The same, 20 agents with 1 slot each")
	show.makespan(all, 0, "", "", "")
	show.uploadCalls(all, fmt.Sprintf("= %g, as with 1 agent", one.each(one.calls.Writes)), "", "")
	return nil
}

// snapshots is two hundred data uploads whose snapshots are not ready for long: all of them wait at the same time.
// Movers take 2 s, as two processors play no more than about six uploads per second: most of that is the API server's
// work for the snapshot-controller, the driver and the kubelets.
func (s *env) snapshots(ctx context.Context) error {
	const ready, mover = 10 * time.Second, 2 * time.Second
	seen, err := s.carry(ctx, workload{
		layout: layout{name: "snapshots", nodes: 3, slots: slots, movers: mover}, uploads: 200, ready: ready,
	})
	if err != nil {
		return err
	}
	show := s.panel("200 data uploads over 3 nodes with 4 slots each, movers of 2 s, snapshots ready 10 s after they were cut")
	ideal := ready + seen.movers*time.Duration(seen.uploads)/time.Duration(seen.slotsInAll())
	show.makespan(seen, ideal*3/2, fmt.Sprintf("1.5 x %g", seconds(ideal)), "", "")
	show.uploadCalls(seen, "<= 16", "", "")
	return nil
}

// slotsInAll are those of all nodes.
func (l workload) slotsInAll() int { return l.nodes * l.slots }

// rounds is how long the movers take if no slot is ever free while there is one left to begin.
func (l workload) rounds() time.Duration {
	inAll := l.slotsInAll()
	return time.Duration((l.uploads+inAll-1)/inAll) * l.movers
}

// each is a number per data upload.
func (l workload) each(n int) float64 { return rounded(float64(n)/float64(l.uploads), 100) }

// makespan adds how the uploads went through the slots of all nodes; a bound of 0 is none.
func (p panel) makespan(seen *carried, bound time.Duration, why, velero, veleroBusy string) {
	measured := figures.Measure(seen.transitions, seen.slotsInAll())
	p.against("Completed", float64(measured.Completed), "", fmt.Sprint(seen.uploads), "")
	asked := ""
	if bound > 0 {
		asked = fmt.Sprintf("<= %g (%s)", seconds(bound), why)
	}
	p.against("makespan", seconds(measured.Makespan), "s", asked, velero)
	work := seen.movers * time.Duration(seen.uploads)
	p.against("slots busy: movers at work", percent(figures.Share(work, measured.Makespan, seen.slotsInAll())), "%", "", veleroBusy)
	p.show("slots taken: InProgress", percent(measured.Held), "%")
	p.against("most InProgress at once on one node", float64(mostOnANode(seen.transitions)), "", fmt.Sprintf("<= %d", seen.slots), "")
	p.show("first InProgress after", seconds(measured.First), "s")
	p.show("InProgress, median", milliseconds(measured.Median), "ms")
	p.show("processors busy meanwhile, whoever it was", percent(seen.busy), "%")
	p.show("agents' processor time per data upload", milliseconds(seen.cpu/time.Duration(seen.uploads)), "ms")
}

// mostOnANode is how many uploads were InProgress at once on the node where that were most.
func mostOnANode(transitions []testenv.Transition) int {
	most, nodes := 0, map[string][]testenv.Transition{}
	for _, t := range transitions {
		nodes[t.Node] = append(nodes[t.Node], t)
		most = max(most, figures.Measure(nodes[t.Node], 1).MostAtOnce)
	}
	return most
}

// uploadCalls adds what the agents asked of the API server, per data upload.
func (p panel) uploadCalls(seen *carried, writes, veleroWrites, veleroReads string) {
	calls := seen.calls
	p.against("API writes per data upload", seen.each(calls.Writes), "", writes, veleroWrites)
	p.against("API reads per data upload", seen.each(calls.Reads), "", "<= 6", veleroReads)
	p.against("conflicts (409)", float64(calls.Conflict), "", "0", "")
	p.against("same read, most often", float64(calls.MostAlike.Times), "", "1: no polling", "")
	p.against("progress updates per data upload", seen.each(calls.Progress), "", "not counted", "")
	p.against("Kubernetes Events per data upload", seen.each(calls.Events), "", "<= 1", "")
	p.against("writes of Leases, in all", float64(calls.Leases), "", "not counted", "")
	p.against("watches begun per data upload", seen.each(calls.Watches), "", "not counted", "")
	for _, refused := range calls.Refused {
		p.show("refused: "+refused.What, float64(refused.Times), "")
	}
	for _, call := range calls.By {
		p.show("calls per data upload: "+call.What, seen.each(call.Times), "")
	}
}
