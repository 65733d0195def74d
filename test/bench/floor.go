package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"github.com/lateen-project/lateen/test/bench/floor"
	"github.com/lateen-project/lateen/test/fixture"
)

// runFloor is the subcommand floor: the agent of package floor.
func runFloor(ctx context.Context, arguments []string) error {
	options, flags := floor.Options{Image: "floor"}, flag.NewFlagSet("floor", flag.ExitOnError)
	flags.StringVar(&options.Kubeconfig, "kubeconfig", "", "kubeconfig of the agent")
	flags.StringVar(&options.Namespace, "namespace", "", "namespace of Velero")
	flags.StringVar(&options.Address, "metrics-address", "", "address that serves /readyz")
	flags.IntVar(&options.Slots, "slots", 1, "transfers InProgress on each node")
	nodes := flags.String("nodes", "", "names of the nodes")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	options.Nodes = strings.Split(*nodes, ",")
	return floor.Run(ctx, options)
}

// floor starts the agent of package floor, which serves all nodes.
func (s *installation) floor(ctx context.Context) ([]*fixture.Program, error) {
	var nodes []string
	for _, on := range s.Nodes {
		nodes = append(nodes, on.Name())
	}
	agent, err := s.ProgramOf(ctx, "bench", s.Nodes[0], "floor", "--nodes="+strings.Join(nodes, ","), fmt.Sprint("--slots=", slots))
	return []*fixture.Program{agent}, err
}
