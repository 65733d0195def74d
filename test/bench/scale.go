package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
)

// runScale is the subcommand scale. It measures what an agent of Lateen costs the API server for transfers that it does not
// own. Whole agents and hollow ones run in this process, each with a connection of its own and the permissions of the
// agents' ServiceAccount. One node works; what the others receive is the cost.
func runScale(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("scale", flag.ExitOnError)
	agents := flags.String("agents", "10,50,100", "numbers of whole agents to measure with, ascending")
	hollow := flags.String("hollow", "250,500", "numbers of hollow agents beside them, ascending")
	backups := flags.Int("backups", 50, "PodVolumeBackups for each measurement")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	whole, err := numbers(*agents)
	if err != nil {
		return err
	}
	beside, err := numbers(*hollow)
	if err != nil {
		return err
	}
	return withPlane(ctx, func(ctx context.Context, s *env) (err error) {
		f, err := newFleet(ctx, s.plane, s.dir)
		defer func() { err = errors.Join(err, f.close()) }()
		if err != nil {
			return err
		}
		samples, err := f.samples(ctx, whole, beside, *backups)
		if err != nil {
			return err
		}
		return printSamples(samples, whole[len(whole)-1])
	})
}

// numbers reads a list of numbers.
func numbers(text string) (all []int, err error) {
	for field := range strings.SplitSeq(text, ",") {
		number, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("read number of agents: %w", err)
		}
		all = append(all, number)
	}
	return all, nil
}

// samples measures with each number of agents.
func (f *fleet) samples(ctx context.Context, whole, hollow []int, backups int) (all []*sample, err error) {
	measure := func(agents int) error {
		taken, err := f.measure(ctx, agents, backups)
		all = append(all, taken)
		progress("measured with %d agents", agents)
		return err
	}
	for _, agents := range whole {
		if err := f.grow(ctx, agents); err != nil {
			return nil, err
		}
		if err := measure(agents); err != nil {
			return nil, err
		}
	}
	for _, agents := range hollow {
		if err := f.addHollow(ctx, agents); err != nil {
			return nil, err
		}
		if err := measure(len(f.whole) + agents); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// printSamples prints the samples, and what each agent more costs between two of them. Those beyond so many whole ones are
// hollow.
func printSamples(samples []*sample, whole int) error {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "%d PodVolumeBackups on one node, %d processors\n", samples[0].backups, runtime.NumCPU())
	fmt.Fprintln(out, "agents\twatches\tevents sent\tKiB sent\tCPU of the API server\tterminated watchers\trefused\tseconds")
	for _, s := range samples {
		fmt.Fprintf(out, "%d\t%.0f\t%.0f\t%.0f\t%.1f s\t%.0f\t%.0f\t%.1f\n", s.agents, total(s.did.watches), total(s.did.deliveries),
			total(s.did.bytes)/1024, s.did.cpu.Seconds(), s.did.terminated, s.did.refused, s.took.Seconds())
	}
	fmt.Fprintln(out, "\none idle agent more\twatches\tevents for each backup\tKiB\tCPU of the API server\tsame as the formula")
	for i, many := range samples[1:] {
		cost := compare(samples[i], many)
		verdict := "yes"
		if differs := cost.check(watchesPerAgent(many.agents > whole)); len(differs) > 0 {
			verdict = strings.Join(differs, "; ")
		}
		fmt.Fprintf(out, "%d to %d\t%.1f\t%.2f\t%.1f\t%d µs\t%s\n", samples[i].agents, many.agents, total(cost.watches), total(cost.deliveries),
			cost.bytes/1024, cost.cpu.Microseconds(), verdict)
	}
	return out.Flush()
}
