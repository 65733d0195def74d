package main

import (
	"context"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
)

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
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	require.NoError(t, fixture.LogToFile(t.TempDir()))
	f, err := newFleet(ctx, plane, t.TempDir())
	t.Cleanup(func() { require.NoError(t, f.close()) })
	require.NoError(t, err)
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

// numbers reads a list of numbers, which may be empty.
func numbers(t *testing.T, text string) (all []int) {
	t.Helper()
	for field := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
		number, err := strconv.Atoi(field)
		require.NoError(t, err)
		all = append(all, number)
	}
	return all
}
