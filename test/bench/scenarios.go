package main

import (
	"context"
	"errors"
	"time"

	"github.com/lateen-project/lateen/test/bench/figures"
	"github.com/lateen-project/lateen/test/bench/record"
	"github.com/lateen-project/lateen/test/testenv"
)

// expected is what is asked of a figure, and what Velero's agent has; "" where there is nothing.
type expected struct{ bound, velero string }

// expectations are those of a load. Lateen's makespan is also compared with the floor's.
type expectations struct{ completed, makespan, busy, taken, writes, reads, memory, floor expected }

// pace is a hundred backups of 1 s on one node: how near the agent comes to the ideal, and what it asks of the API
// server meanwhile. This is the work that Velero's own agent was measured with.
func (s *env) pace(ctx context.Context, show *record.Scenario) error {
	return s.compare(ctx, show, "backup", load{
		kind: testenv.PodVolumeBackup, transfers: 100, nodes: 1, takes: time.Second, prepare: prepareBackups,
	}, expectations{
		completed: expected{"100", ""}, makespan: expected{"<= 30 (1.2 x 25)", "275"}, busy: expected{">= 90", "9"}, taken: expected{">= 90", ""},
		writes: expected{"<= 7", "10"}, reads: expected{"<= 4", "15"}, memory: expected{"", "89"}, floor: expected{"<= 1.03", ""},
	})
}

// uploads is fifty data uploads of 1 s over three nodes. Velero's own agent was measured with it too.
func (s *env) uploads(ctx context.Context, show *record.Scenario) (err error) {
	controller, err := testenv.ServeSnapshots(ctx, s.plane)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, controller.Kill()) }()
	return s.compare(ctx, show, "data upload", load{
		kind: testenv.DataUpload, transfers: 50, nodes: 3, takes: time.Second, prepare: prepareUploads,
	}, expectations{
		completed: expected{"50", ""}, makespan: expected{"<= 10 (2 x 5)", "102"}, busy: expected{"", "4"},
		writes: expected{"<= 17", "19"}, reads: expected{"<= 6", "25"}, floor: expected{"<= 1.06", ""},
	})
}

// compare has Lateen do a load, and an agent that sends only the requests that none can leave out.
func (s *env) compare(ctx context.Context, show *record.Scenario, each string, l load, ask expectations) error {
	lateen, err := s.carry(ctx, show.Name, l, false)
	if err != nil {
		return err
	}
	floor, err := s.carry(ctx, show.Name+"-floor", l, true)
	if err != nil {
		return err
	}
	of := func(total float64) float64 { return rounded(total/float64(l.transfers), 100) }
	against := func(name string, value float64, unit string, ask expected) {
		show.Against(name, value, unit, ask.bound, ask.velero)
	}
	took, least := figures.Measure(lateen.transitions, l.slotsInAll()), figures.Measure(floor.transitions, l.slotsInAll())
	work := l.takes * time.Duration(l.transfers)
	against("Completed", float64(took.Completed), "", ask.completed)
	against("makespan", seconds(took.Makespan), "s", ask.makespan)
	against("slots busy: movers at work", percent(figures.Share(work, took.Makespan, l.slotsInAll())), "%", ask.busy)
	against("slots taken: InProgress", percent(took.Held), "%", ask.taken)
	against("most InProgress at once on one node", float64(lateen.mostOnANode()), "", expected{"<= 4", ""})
	show.Show("first InProgress after", seconds(took.First), "s")
	show.Show("mover's end to next InProgress, median", milliseconds(figures.Percentile(lateen.turnovers(), .5)), "ms")
	calls := lateen.calls
	against("API writes per "+each, of(float64(calls.Writes)), "", ask.writes)
	against("API reads per "+each, of(float64(calls.Reads)), "", ask.reads)
	against("conflicts (409)", float64(calls.Conflict), "", expected{"0", ""})
	against("same read, most often", float64(calls.MostAlike.Times), "", expected{"1: no polling", ""})
	against("Kubernetes Events per "+each, of(float64(calls.Events)), "", expected{"<= 1", ""})
	for _, call := range calls.By {
		show.Show("calls per "+each+": "+call.What, of(float64(call.Times)), "")
	}
	show.Show("agents' processor time per "+each, of(milliseconds(lateen.cpu)), "ms")
	against("agent's resident memory, after", lateen.resident, "MiB", ask.memory)
	show.Show("floor: makespan", seconds(least.Makespan), "s")
	against("makespan, Lateen : floor", rounded(took.Makespan.Seconds()/least.Makespan.Seconds(), 100), "", ask.floor)
	show.Show("floor: API writes per "+each, of(float64(floor.calls.Writes)), "")
	show.Show("floor: API reads per "+each, of(float64(floor.calls.Reads)), "")
	show.Show("floor: processor time per "+each, of(milliseconds(floor.cpu)), "ms")
	against("processor time, Lateen : floor", rounded(float64(lateen.cpu)/float64(max(floor.cpu, clockTick)), 10), "", expected{"<= 2.5", ""})
	return nil
}

// The units below are rounded to what the measuring can tell.

func seconds(d time.Duration) float64 { return rounded(d.Seconds(), 100) }

func milliseconds(d time.Duration) float64 { return rounded(float64(d)/float64(time.Millisecond), 10) }

func percent(share float64) float64 { return rounded(100*share, 10) }

func rounded(value, parts float64) float64 { return float64(int64(value*parts+0.5)) / parts }
