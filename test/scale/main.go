// Command scale measures what an agent of Lateen costs the API server for transfers that it does not own. Whole agents and
// hollow ones run in this process, against a real control plane, each with a connection of its own and the permissions of
// the agents' ServiceAccount. One node works; what the others receive is the cost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// deadline is what a run may take.
const deadline = 15 * time.Minute

func main() {
	agents := flag.String("agents", "10,50,100", "numbers of whole agents to measure with, ascending")
	hollow := flag.String("hollow", "250,500", "numbers of hollow agents beside them, ascending")
	backups := flag.Int("backups", 50, "PodVolumeBackups for each measurement")
	finished := flag.Int("finished", 10_000, "finished PodVolumeBackups among which an agent starts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	r := &run{backups: *backups, finished: *finished, out: os.Stdout}
	err := errors.Join(parse(*agents, &r.agents), parse(*hollow, &r.hollow))
	if err == nil {
		err = r.all(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // there is nothing left to stop
	}
}

// parse reads a list of numbers.
func parse(text string, into *[]int) error {
	for field := range strings.SplitSeq(text, ",") {
		number, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil {
			return fmt.Errorf("read number of agents: %w", err)
		}
		*into = append(*into, number)
	}
	return nil
}

// run is one run of all measurements.
type run struct {
	agents, hollow    []int
	backups, finished int
	out               io.Writer
}

func (r *run) all(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "lateen-scale-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := fixture.LogToFile(dir); err != nil {
		return err
	}
	plane, err := cluster.Start(ctx, cluster.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	if err := testenv.InstallCRDs(ctx, plane.Admin()); err != nil {
		return err
	}
	f, err := newFleet(ctx, plane, dir)
	defer func() { err = errors.Join(err, f.close()) }()
	if err != nil {
		return err
	}
	samples, err := r.samples(ctx, f)
	if err != nil {
		return err
	}
	if err := r.table(samples); err != nil {
		return err
	}
	return r.start(ctx, f)
}

// samples measures with each number of agents.
func (r *run) samples(ctx context.Context, f *fleet) (all []*sample, err error) {
	for _, agents := range r.agents {
		if err := f.grow(ctx, agents); err != nil {
			return nil, err
		}
		taken, err := f.measure(ctx, agents, r.backups)
		if err != nil {
			return nil, err
		}
		all = append(all, taken)
		fmt.Fprintf(os.Stderr, "%s  measured with %d agents\n", time.Now().Format(time.TimeOnly), agents)
	}
	whole := r.agents[len(r.agents)-1]
	for _, hollow := range r.hollow {
		if err := f.addHollow(ctx, hollow); err != nil {
			return nil, err
		}
		taken, err := f.measure(ctx, whole+hollow, r.backups)
		if err != nil {
			return nil, err
		}
		all = append(all, taken)
		fmt.Fprintf(os.Stderr, "%s  measured with %d more, which are hollow\n", time.Now().Format(time.TimeOnly), hollow)
	}
	return all, nil
}

// table prints the samples, and what each agent more costs between two of them.
func (r *run) table(samples []*sample) error {
	out := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "%d PodVolumeBackups on one node, %d processors\n", r.backups, runtime.NumCPU())
	fmt.Fprintln(out, "agents\twatches\tevents sent\tKiB sent\tCPU of the API server\tterminated watchers\trefused\tseconds")
	for _, s := range samples {
		fmt.Fprintf(out, "%d\t%.0f\t%.0f\t%.0f\t%.1f s\t%.0f\t%.0f\t%.1f\n", s.agents, total(s.did.watches), total(s.did.deliveries),
			total(s.did.bytes)/1024, s.did.cpu.Seconds(), s.did.terminated, s.did.refused, s.took.Seconds())
	}
	fmt.Fprintln(out, "\none idle agent more\twatches\tevents for each backup\tKiB\tCPU of the API server\tsame as the formula")
	for i, many := range samples[1:] {
		cost := compare(samples[i], many)
		watches := watchesPerAgent()
		if many.agents > r.agents[len(r.agents)-1] {
			delete(watches, "leases.coordination.k8s.io") // hollow
			delete(watches, "configmaps")
		}
		verdict := "yes"
		if differs := cost.check(watches); len(differs) > 0 {
			verdict = strings.Join(differs, "; ")
		}
		fmt.Fprintf(out, "%d to %d\t%.1f\t%.2f\t%.1f\t%d µs\t%s\n", samples[i].agents, many.agents, total(cost.watches), total(cost.deliveries),
			cost.bytes/1024, cost.cpu.Microseconds(), verdict)
	}
	return out.Flush()
}

// starting agents among finished transfers.
const late = 10

// start measures what the API server sends to an agent that starts among finished transfers.
func (r *run) start(ctx context.Context, f *fleet) error {
	if err := f.finish(ctx, r.finished); err != nil {
		return err
	}
	before, err := calm(ctx, f.Kube)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := f.addHollow(ctx, f.hollow+late); err != nil {
		return err
	}
	took := time.Since(begun)
	after, err := calm(ctx, f.Kube)
	if err != nil {
		return err
	}
	did := after.since(before)
	_, err = fmt.Fprintf(r.out, "\nan agent that starts among %d finished PodVolumeBackups receives %.1f of them, and lists %.1f times; %d agents start in %.1f s\n",
		r.finished, did.initial[kinds()[0]]/late, lists(did)/late, late, took.Seconds())
	return err
}

// lists is the number of lists of Velero's resources.
func lists(did *counters) (sum float64) {
	for _, kind := range kinds() {
		sum += did.requests["LIST "+kind]
	}
	return sum
}
