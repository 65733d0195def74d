// Package install tries on a real control plane what operators install Lateen with.
package install

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
	// Definitions are everybody's: those that were there before are nobody's to remove.
	os.Exit(cluster.Main(m, os.Stderr, &plane, func(ctx context.Context, c *cluster.Cluster) error {
		return testenv.InstallCRDs(ctx, c.Admin())
	}))
}

// soon bounds one wait.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	t.Cleanup(cancel)
	return ctx
}
