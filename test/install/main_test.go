// Package install tries on a real control plane what operators install Lateen with.
package install

import (
	"os"
	"testing"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
)

// plane is the one control plane of this test binary; TestMain sets it.
var plane *cluster.Cluster

// Definitions belong to the cluster: no test removes those that it did not create.
func TestMain(m *testing.M) { os.Exit(fixture.Main(m, &plane)) }

// soon bounds one wait.
var soon = fixture.Soon
