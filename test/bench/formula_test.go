package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
)

// The formula: what one more agent costs that has nothing to do with the work. It receives no event of a transfer, and sends no
// request. A watch receives up to two bookmarks a minute. This is what a measurement may differ by in any case, for each
// backup; moversNoise is that of events of transfers: the movers watch them too, and receive more the longer they run. It is
// half of the least that an agent could receive.
const bookmarksPerMinute, leastNoise, moversNoise = 2.5, 0.1, 0.5

// watchesPerAgent are those of an idle agent by resource: of transfers, those of its node; of pods, those of its node and its own movers; of
// ConfigMaps, its own. A hollow agent has neither ConfigMap nor Lease.
func watchesPerAgent(hollow bool) map[string]float64 {
	all := map[string]float64{"pods": 2, "persistentvolumeclaims": 1}
	if !hollow {
		all["configmaps"], all["leases.coordination.k8s.io"] = 1, 1
	}
	for _, kind := range kinds() {
		all[kind] = 1
	}
	return all
}

// kinds are the kinds of transfers, of which no other program of the fleet writes any.
func kinds() []string {
	var all []string
	for _, kind := range api.Kinds() {
		all = append(all, kind.GVR().GroupResource().String())
	}
	return all
}

// sample is what the API server did for some backups while so many agents ran.
type sample struct {
	agents, backups int
	took            time.Duration
	did             *counters
	requests        map[string]float64 // of all agents, by verb and resource, without watches
}

func (s *sample) String() string {
	return fmt.Sprintf("%.0f watches, %.0f events of %.0f KiB, CPU of the API server %s, %.0f watchers terminated, %.0f requests refused, in %s",
		total(s.did.watches), total(s.did.deliveries), total(s.did.bytes)/1024, s.did.cpu, s.did.terminated, s.did.refused, s.took)
}

// measure has a fleet back up, and returns what the API server did for it until it had delivered everything.
func (f *fleet) measure(ctx context.Context, backups int) (*sample, error) {
	before, err := calm(ctx, f.Kube)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := f.work(ctx, backups); err != nil {
		return nil, err
	}
	took := time.Since(begun)
	after, err := calm(ctx, f.Kube)
	if err != nil {
		return nil, err
	}
	sent, err := f.requests(ctx, begun)
	return &sample{agents: len(f.whole) + f.hollow, backups: backups, took: took, did: after.since(before), requests: sent}, err
}

// requests counts what the agents have sent since a time.
func (f *fleet) requests(ctx context.Context, since time.Time) (map[string]float64, error) {
	sent, err := f.Plane.Audit(ctx, cluster.Query{User: "system:serviceaccount:" + f.Namespace + ":" + deploy.ServiceAccountName, Since: since})
	counted := map[string]float64{}
	for _, one := range sent {
		if one.Verb != "watch" {
			counted[one.Verb+" "+one.Resource]++
		}
	}
	return counted, err
}

// calmFor is how long nothing must be delivered until everything counts as delivered.
const calmFor = 500 * time.Millisecond

// calm returns the counters once the API server delivers nothing of Velero's and opens no watch. It has no way to tell.
func calm(ctx context.Context, client kubernetes.Interface) (*counters, error) {
	tick := time.NewTicker(calmFor)
	defer tick.Stop()
	before, err := scrape(ctx, client)
	for err == nil {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait until everything is delivered: %w", context.Cause(ctx))
		case <-tick.C:
		}
		var now *counters
		if now, err = scrape(ctx, client); err != nil {
			break
		}
		same := maps.Equal(before.watches, now.watches)
		for _, kind := range kinds() {
			same = same && before.deliveries[kind] == now.deliveries[kind]
		}
		if same {
			return now, nil
		}
		before = now
	}
	return nil, err
}

// perAgent is what one more idle agent costs, by two samples with different numbers of agents.
type perAgent struct {
	watches    map[string]float64 // by resource
	deliveries map[string]float64 // by resource, for each backup
	bytes      float64            // of all deliveries, for each backup
	requests   map[string]float64 // by verb and resource, for each backup
	cpu        time.Duration      // of the API server, for each backup
	noise      float64            // what comes with time, for each watch and backup
}

func (p perAgent) String() string {
	return fmt.Sprintf("%.1f watches, %.2f events of %.1f KiB, CPU of the API server %s", total(p.watches), total(p.deliveries), p.bytes/1024, p.cpu)
}

// compare returns the difference of two samples per agent. Leases, Nodes and repeated Events are left out: they come with time.
func compare(few, many *sample) perAgent {
	agents := float64(many.agents - few.agents)
	perBackup := func(a, b map[string]float64) map[string]float64 {
		all := map[string]float64{}
		for name, value := range b {
			if !strings.Contains(name, "leases") && name != "nodes" && name != "patch events" {
				all[name] = value/float64(many.backups) - a[name]/float64(few.backups)
			}
		}
		return all
	}
	cost := perAgent{
		watches: map[string]float64{}, requests: perBackup(few.requests, many.requests),
		noise: max(bookmarksPerMinute*many.took.Minutes()/float64(many.backups), leastNoise),
	}
	for name, open := range minus(many.did.watches, few.did.watches) {
		cost.watches[name] = open / agents
	}
	// The controllers of Kubernetes may have opened watches meanwhile, which receive the same.
	cost.deliveries = perBackup(few.did.deliveries, many.did.deliveries)
	for name, value := range cost.deliveries {
		cost.deliveries[name] = value / agents / max(cost.watches[name], 1)
	}
	for name := range cost.requests {
		cost.requests[name] /= agents
	}
	cost.bytes = total(perBackup(few.did.bytes, many.did.bytes)) / agents
	cost.cpu = time.Duration((float64(many.did.cpu)/float64(many.backups) - float64(few.did.cpu)/float64(few.backups)) / agents)
	return cost
}

// check returns how the cost differs from the formula; empty if it does not.
func (p perAgent) check(watches map[string]float64) (differs []string) {
	for _, name := range keys(p.watches, watches) {
		if got := p.watches[name]; math.Round(got) != watches[name] {
			differs = append(differs, fmt.Sprintf("an idle agent has %.2f watches of %s, not %g", got, name, watches[name]))
		}
	}
	for _, name := range keys(p.deliveries) {
		noise := p.noise
		if slices.Contains(kinds(), name) {
			noise = max(noise, moversNoise)
		}
		if got := p.deliveries[name]; got > noise {
			differs = append(differs, fmt.Sprintf("an idle agent receives %.3f events of %s for a backup", got, name))
		}
	}
	for _, name := range keys(p.requests) {
		if got := p.requests[name]; got > p.noise {
			differs = append(differs, fmt.Sprintf("an idle agent sends %.3f requests %s for a backup", got, name))
		}
	}
	return differs
}

func keys(of ...map[string]float64) []string {
	all := map[string]bool{}
	for _, one := range of {
		for name := range one {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

var (
	agents  = flag.String("agents", "10,50", "numbers of whole agents to measure with, ascending")
	hollow  = flag.String("hollow", "", "numbers of hollow agents beside them, ascending")
	backups = flag.Int("backups", 20, "PodVolumeBackups for each measurement")
)

var plane *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, &plane)) }

// TestAnIdleAgentCostsWhatTheFormulaSays fails when an agent needs a watch, a list or a delivery more for what it does not
// own: that is what a large cluster cannot pay. Whole agents and hollow ones run in this process, each with a connection of
// its own and the permissions of the agents' ServiceAccount. One node works; what the others receive is the cost.
func TestAnIdleAgentCostsWhatTheFormulaSays(t *testing.T) {
	ctx, f := started(t, 1)
	var few *sample
	measure := func(isHollow bool) {
		many, err := f.measure(ctx, *backups)
		require.NoError(t, err)
		t.Logf("%d agents: %s", many.agents, many)
		if few != nil {
			cost := compare(few, many)
			require.Empty(t, cost.check(watchesPerAgent(isHollow)), "%+v", cost)
			t.Logf("each further agent, for each backup: %s", cost)
		}
		require.Zero(t, many.did.refused, "no request is refused by API Priority and Fairness")
		if !isHollow {
			require.Zero(t, many.did.terminated, "every watcher keeps up")
		}
		few = many
	}
	for _, number := range numbers(t, *agents) {
		require.NoError(t, f.grow(ctx, number))
		measure(false)
	}
	for _, number := range numbers(t, *hollow) {
		require.NoError(t, f.addHollow(ctx, number))
		measure(true)
	}
}

// started returns a fleet without agents, which ends with the test.
func started(tb testing.TB, nodes int) (context.Context, *fleet) {
	tb.Helper()
	require.NoError(tb, fixture.LogToFile(tb.TempDir()))
	ctx, cancel := context.WithTimeout(tb.Context(), deadline)
	tb.Cleanup(cancel)
	f, err := newFleet(ctx, plane, tb.TempDir(), nodes)
	tb.Cleanup(func() { require.NoError(tb, f.close()) })
	require.NoError(tb, err)
	return ctx, f
}

// numbers reads a list of numbers, which may be empty.
func numbers(tb testing.TB, text string) (all []int) {
	tb.Helper()
	for field := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
		number, err := strconv.Atoi(field)
		require.NoError(tb, err)
		all = append(all, number)
	}
	return all
}
