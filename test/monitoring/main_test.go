package monitoring

import (
	"os"
	"testing"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
)

// plane is the one control plane of this test binary; TestMain sets it.
var plane *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, &plane)) }
