// Package integration runs the agent against a real control plane, with the rights that package deploy
// gives it. Only kubelets and movers are played.
package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/world"
)

// plane is the one control plane of this test binary; TestMain sets it.
var plane *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if plane, err = cluster.Start(ctx, cluster.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := 1
	if err = world.InstallCRDs(ctx, plane.Admin()); err == nil {
		code = m.Run()
	}
	if err := errors.Join(err, plane.Stop()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
