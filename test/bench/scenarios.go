package main

import (
	"context"
	"fmt"
	"time"

	"github.com/lateen-project/lateen/test/bench/figures"
	"github.com/lateen-project/lateen/test/testenv"
)

// pace is a hundred backups of 1 s, by an agent with its default flags: how near it comes to the ideal, and
// what it asks of the API server meanwhile. This is the work that Velero's own agent was measured with.
func (s *env) pace(ctx context.Context) error {
	const mover = time.Second
	seen, err := s.runHundred(ctx, layout{name: "pace", movers: mover})
	if err != nil {
		return err
	}
	floor, err := s.runHundred(ctx, layout{name: "pace-floor", movers: mover, floor: true})
	if err != nil {
		return err
	}
	show := s.panel("100 backups at once on a node with 4 slots, movers of 1 s, pods start in 0.5 s")
	measured := figures.Measure(seen.transitions, slots)
	ideal := mover * backups / slots
	show.against("Completed", float64(measured.Completed), "", "100", "")
	show.against("makespan", seconds(measured.Makespan), "s", fmt.Sprintf("<= %g (1.2 x %g)", 1.2*ideal.Seconds(), ideal.Seconds()), "275")
	show.against("slots busy: movers at work", percent(figures.Share(mover*backups, measured.Makespan, slots)), "%", ">= 90", "9")
	show.against("slots taken: InProgress", percent(measured.Held), "%", ">= 90", "")
	show.against("most InProgress at once", float64(measured.MostAtOnce), "", "<= 4", "")
	show.show("first InProgress after", seconds(measured.First), "s")
	show.show("InProgress, median", milliseconds(measured.Median), "ms")
	show.turnovers("", seen.transitions, seen.ends, slots)
	show.calls(seen.calls)
	show.show("agent's processor time per backup", milliseconds(seen.cpu/backups), "ms")
	show.against("agent's resident memory, after", mebibytes(seen.memory.resident), "MiB", "", "89")
	show.show("agent's resident memory, peak", mebibytes(seen.memory.peak), "MiB")
	show.floor("1.03", "backup", used{seen.transitions, seen.calls, seen.cpu}, used{floor.transitions, floor.calls, floor.cpu})
	return nil
}

// calls adds what the agent asked of the API server, per backup.
func (p panel) calls(calls figures.Calls) {
	each := func(n int) float64 { return rounded(float64(n)/backups, 100) }
	p.against("API writes per backup", each(calls.Writes), "", "<= 7", "10")
	p.against("API reads per backup", each(calls.Reads), "", "<= 4", "15")
	p.against("same read, most often", float64(calls.MostAlike.Times), "", "1: no polling", "")
	p.against("progress updates per backup", each(calls.Progress), "", "not counted", "")
	p.against("Kubernetes Events per backup", each(calls.Events), "", "<= 1", "")
	p.against("watches begun per backup", each(calls.Watches), "", "not counted", "")
	p.show("refused requests", float64(calls.Failed), "")
	for _, call := range calls.By {
		p.show("calls per backup: "+call.What, each(call.Times), "")
	}
}

// turnover is a hundred backups of 200 ms: how soon a slot is taken again.
func (s *env) turnover(ctx context.Context) error {
	seen, err := s.runHundred(ctx, layout{name: "turnover", movers: 200 * time.Millisecond}, "--kube-api-qps=500", "--kube-api-burst=1000")
	if err != nil {
		return err
	}
	show := s.panel("The same with movers of 200 ms, QPS 500, burst 1000")
	measured := figures.Measure(seen.transitions, slots)
	show.against("Completed", float64(measured.Completed), "", "100", "")
	show.show("makespan", seconds(measured.Makespan), "s")
	show.against("most InProgress at once", float64(measured.MostAtOnce), "", "<= 4", "")
	show.show("InProgress, median", milliseconds(measured.Median), "ms")
	show.turnovers("< 50", seen.transitions, seen.ends, slots)
	return nil
}

// turnovers adds how soon slots were taken again.
func (p panel) turnovers(bound string, transitions []testenv.Transition, ends []time.Time, slots int) {
	turnovers := figures.Turnovers(transitions, ends, slots)
	p.against("mover's end to next InProgress, median", milliseconds(figures.Percentile(turnovers, .5)), "ms", bound, "")
	p.show("mover's end to next InProgress, 99 %", milliseconds(figures.Percentile(turnovers, .99)), "ms")
	p.show("of so many, where one was waiting", float64(len(turnovers)), "")
}
