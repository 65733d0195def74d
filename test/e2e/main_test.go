package e2e

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// current and former are the control planes of this test binary, with the resource definitions of a version of Velero.
var current, former = serving("velero"), serving("velero-1.17")

// serving returns a control plane for a binary of Velero.
func serving(velero string) *fixture.Shared {
	definitions := func(ctx context.Context, plane *cluster.Cluster) error {
		binary, err := cluster.FindBinary(velero)
		if err != nil {
			return err
		}
		return testenv.InstallCRDsOf(ctx, plane.Admin(), binary)
	}
	return &fixture.Shared{Prepare: []fixture.Step{definitions, fixture.Snapshots}}
}

// planeOf returns the control plane for a version of Velero.
func planeOf(t *testing.T, velero string) *cluster.Cluster {
	t.Helper()
	shared := current
	if velero == "velero-1.17" {
		shared = former
	}
	plane, err := shared.Plane()
	require.NoError(t, err)
	return plane
}

func TestMain(m *testing.M) { os.Exit(fixture.Run(m, current, former)) }
