package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/lateen-project/lateen/test/bench/figures"
	"github.com/lateen-project/lateen/test/bench/floor"
	"github.com/lateen-project/lateen/test/testenv"
)

// runFloor is the subcommand floor: the agent of package floor.
func runFloor(ctx context.Context, arguments []string) error {
	options, flags := floor.Options{Image: "floor"}, flag.NewFlagSet("floor", flag.ExitOnError)
	flags.StringVar(&options.Kubeconfig, "kubeconfig", "", "kubeconfig of the agent")
	flags.StringVar(&options.Namespace, "namespace", "", "namespace of Velero")
	flags.StringVar(&options.Address, "metrics-address", "", "address that serves /readyz")
	flags.IntVar(&options.Nodes, "nodes", 1, "number of nodes")
	flags.IntVar(&options.Slots, "slots", 1, "transfers InProgress on each node")
	selector := flags.String("selector", "", "labels of the nodes")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	var err error
	if options.NodeSelector, err = labels.ConvertSelectorToLabelsMap(*selector); err != nil {
		return fmt.Errorf("parse --selector: %w", err)
	}
	return floor.Run(ctx, options)
}

// used is what an agent took for the work of a scenario.
type used struct {
	transitions []testenv.Transition
	calls       figures.Calls
	cpu         time.Duration
}

// floor adds what the same work takes an agent that sends only the requests that none can leave out, and how Lateen compares.
func (p panel) floor(makespan, each string, lateen, floor used) {
	took := figures.Measure(lateen.transitions, 1)
	least := figures.Measure(floor.transitions, 1)
	p.show("floor: makespan", seconds(least.Makespan), "s")
	p.against("makespan, Lateen : floor", rounded(took.Makespan.Seconds()/least.Makespan.Seconds(), 100), "", "<= "+makespan, "")
	p.show("floor: API writes per "+each, rounded(float64(floor.calls.Writes)/float64(least.Completed), 100), "")
	p.show("floor: API reads per "+each, rounded(float64(floor.calls.Reads)/float64(least.Completed), 100), "")
	p.show("floor: processor time per "+each, milliseconds(floor.cpu/time.Duration(max(least.Completed, 1))), "ms")
	p.against("processor time, Lateen : floor", rounded(float64(lateen.cpu)/float64(max(floor.cpu, clockTick)), 10), "", "<= 2.5", "")
}
