package main

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

var plane *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, &plane)) }

// TestAnIdleAgentCostsWhatTheFormulaSays fails when an agent needs a watch, a list or a delivery more for what it does not
// own: that is what a large cluster cannot pay.
func TestAnIdleAgentCostsWhatTheFormulaSays(t *testing.T) {
	const few, many, backups = 10, 50, 20
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	require.NoError(t, fixture.LogToFile(t.TempDir()))
	f, err := newFleet(ctx, plane, t.TempDir())
	t.Cleanup(func() { require.NoError(t, f.close()) })
	require.NoError(t, err)
	samples, err := f.samples(ctx, []int{few, many}, nil, backups)
	require.NoError(t, err)
	cost := compare(samples[0], samples[1])
	require.Empty(t, cost.check(watchesPerAgent(false)), "%+v", cost)
	t.Logf("%+v", cost)
	require.Zero(t, samples[1].did.terminated, "every watcher keeps up")
	require.Zero(t, samples[1].did.refused, "no request is refused by API Priority and Fairness")
}
