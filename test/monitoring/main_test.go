package monitoring

import (
	"context"
	"os"
	"testing"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/testenv"
)

// plane is the one control plane of this test binary; TestMain sets it.
var plane *cluster.Cluster

func TestMain(m *testing.M) {
	os.Exit(cluster.Main(m, os.Stderr, &plane, func(ctx context.Context, c *cluster.Cluster) error {
		return testenv.InstallCRDs(ctx, c.Admin())
	}))
}
