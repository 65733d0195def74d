// Package integration runs the agent against a real control plane, with the rights that package deploy
// gives it. Only kubelets and movers are played.
package integration

import (
	"context"
	"os"
	"testing"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// plane is the one control plane of this test binary; TestMain sets it.
var plane *cluster.Cluster

func TestMain(m *testing.M) {
	os.Exit(fixture.Main(checkedTests{tests: m}, &plane, func(ctx context.Context, c *cluster.Cluster) error {
		_, err := testenv.ServeSnapshots(ctx, c)
		return err // the snapshot-controller ends with this process
	}))
}
