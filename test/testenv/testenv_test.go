package testenv_test

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// plane is the only control plane of this test binary. TestMain sets it.
var plane *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, &plane)) }

// deadline returns a context that bounds all waits of a test.
var deadline = fixture.Soon

func newWorld(ctx context.Context, t *testing.T, options testenv.Options) *testenv.Env {
	t.Helper()
	w, err := testenv.New(ctx, plane.Admin(), options)
	require.NoError(t, err)
	return w
}
