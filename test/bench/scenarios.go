package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lateen-project/lateen/test/bench/figures"
	"github.com/lateen-project/lateen/test/testenv"
)

// scenario is work that each agent does on an installation of that name.
type scenario struct {
	name string
	play func(ctx context.Context, e *env, a nodeAgent, installation string) ([]figure, error)
}

// They are so small that Velero's agent needs at most two minutes for each.
var scenarios = []scenario{{"pace", pace}, {"uploads", uploads}, {"maintenance", maintenance}, {"memory", memory}}

// pace is a number of backups of 1 s on one node.
func pace(ctx context.Context, e *env, a nodeAgent, name string) ([]figure, error) {
	return e.carry(ctx, a, name, load{
		kind: testenv.PodVolumeBackup, transfers: 40, nodes: 1, takes: time.Second, prepare: prepareBackups, mostWrites: 7, mostReads: 4,
	})
}

// uploads is a number of data uploads of 1 s over three nodes.
func uploads(ctx context.Context, e *env, a nodeAgent, name string) (all []figure, err error) {
	controller, err := testenv.ServeSnapshots(ctx, e.plane)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, controller.Kill()) }()
	return e.carry(ctx, a, name, load{
		kind: testenv.DataUpload, transfers: 36, nodes: 3, takes: time.Second, prepare: prepareUploads, mostWrites: 16, mostReads: 6,
	})
}

// carry has agents do a load, and returns what was seen.
func (e *env) carry(ctx context.Context, a nodeAgent, name string, l load) ([]figure, error) {
	seen, err := e.do(ctx, a, name, l)
	if err != nil {
		return nil, err
	}
	took := figures.Measure(seen.transitions)
	if took.Completed != l.transfers {
		return nil, fmt.Errorf("compare work: %d of %d transfers were completed", took.Completed, l.transfers)
	}
	each := func(total float64) float64 { return rounded(total/float64(l.transfers), 100) }
	return []figure{
		{name: "makespan", value: seconds(took.Makespan), unit: "s"},
		{name: "most InProgress at once on one node", value: float64(seen.mostOnANode()), most: slots},
		{name: "API writes per transfer", value: each(float64(seen.calls.Writes)), most: l.mostWrites},
		{name: "API reads per transfer", value: each(float64(seen.calls.Reads)), most: l.mostReads},
		{name: "Kubernetes Events per transfer", value: each(float64(seen.calls.Events)), most: 1},
		{name: "conflicts (409)", value: float64(seen.calls.Conflict)},
		{name: "processor time of agents per transfer", value: each(milliseconds(seen.cpu)), unit: "ms"},
		{name: "resident memory of an agent, after", value: seen.resident, unit: "MiB"},
	}, nil
}
