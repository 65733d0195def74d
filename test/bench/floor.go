package main

import (
	"context"
	"flag"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/lateen-project/lateen/test/bench/floor"
	"github.com/lateen-project/lateen/test/fixture"
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

// floor starts the agent of package floor, which serves all nodes.
func (s *installation) floor(ctx context.Context) ([]*fixture.Program, error) {
	agent, err := s.ProgramOf(ctx, "bench", s.Nodes[0], "floor",
		"--selector=bench="+s.Namespace, fmt.Sprint("--nodes=", len(s.Nodes)), fmt.Sprint("--slots=", slots))
	return []*fixture.Program{agent}, err
}
