package main

import (
	"context"
	"errors"
	"time"

	"github.com/lateen-project/lateen/test/bench/figures"
	"github.com/lateen-project/lateen/test/testenv"
)

// expectations are those of a load.
type expectations struct{ makespan, busy, writes, reads, memory expected }

// pace is a hundred backups of 1 s on one node: how near the agent comes to the ideal, and what it asks of the API
// server meanwhile. This is the work that Velero's own agent was measured with.
func (e *env) pace(ctx context.Context, show *sheet) error {
	return e.carry(ctx, show, "backup", load{
		kind: testenv.PodVolumeBackup, transfers: 100, nodes: 1, takes: time.Second, prepare: prepareBackups,
	}, expectations{
		makespan: expected{"<= 30 (1.2 x 25)", "275"}, busy: expected{">= 90", "9"},
		writes: expected{"<= 7", "10"}, reads: expected{"<= 4", "15"}, memory: expected{"", "89"},
	})
}

// uploads is fifty data uploads of 1 s over three nodes. Velero's own agent was measured with it too.
func (e *env) uploads(ctx context.Context, show *sheet) (err error) {
	controller, err := testenv.ServeSnapshots(ctx, e.plane)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, controller.Kill()) }()
	return e.carry(ctx, show, "data upload", load{
		kind: testenv.DataUpload, transfers: 50, nodes: 3, takes: time.Second, prepare: prepareUploads,
	}, expectations{
		makespan: expected{"<= 10 (2 x 5)", "102"}, busy: expected{"", "4"}, writes: expected{"<= 16", "19"}, reads: expected{"<= 6", "25"},
	})
}

// carry has agents do a load, and adds what was seen to the figures.
func (e *env) carry(ctx context.Context, show *sheet, each string, l load, ask expectations) error {
	seen, err := e.do(ctx, show.scenario, l)
	if err != nil {
		return err
	}
	of := func(total float64) float64 { return rounded(total/float64(l.transfers), 100) }
	inAll := l.nodes * slots
	took := figures.Measure(seen.transitions)
	work := l.takes * time.Duration(l.transfers)
	show.against("Completed", float64(took.Completed), "", expected{bound: figure{value: float64(l.transfers)}.String()})
	show.against("makespan", seconds(took.Makespan), "s", ask.makespan)
	show.against("slots busy: movers at work", percent(work.Seconds()/(took.Makespan.Seconds()*float64(inAll))), "%", ask.busy)
	show.against("most InProgress at once on one node", float64(seen.mostOnANode()), "", expected{"<= 4", ""})
	show.show("first InProgress after", seconds(took.First), "s")
	show.against("API writes per "+each, of(float64(seen.calls.Writes)), "", ask.writes)
	show.against("API reads per "+each, of(float64(seen.calls.Reads)), "", ask.reads)
	show.against("conflicts (409)", float64(seen.calls.Conflict), "", expected{"0", ""})
	show.against("same read, most often", float64(seen.calls.MostAlike.Times), "", expected{"1: no polling", ""})
	show.against("Kubernetes Events per "+each, of(float64(seen.calls.Events)), "", expected{"<= 1", ""})
	for _, call := range seen.calls.By {
		show.show("calls per "+each+": "+call.What, of(float64(call.Times)), "")
	}
	show.show("agents' processor time per "+each, of(milliseconds(seen.cpu)), "ms")
	show.against("agent's resident memory, after", seen.resident, "MiB", ask.memory)
	return nil
}
