package monitoring

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/testenv"
)

// startTimeout bounds the start of the control plane.
const startTimeout = 3 * time.Minute

// started is the control plane of this test binary, from the first test on that needs it: most need none.
var started struct {
	once  sync.Once
	plane *cluster.Cluster
	err   error
}

func planeOf(t *testing.T) *cluster.Cluster {
	t.Helper()
	started.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if started.plane, started.err = cluster.Start(ctx, cluster.Options{}); started.err == nil {
			started.err = testenv.InstallCRDs(ctx, started.plane.Admin())
		}
	})
	require.NoError(t, started.err)
	return started.plane
}

func TestMain(m *testing.M) {
	code := m.Run()
	if started.plane != nil {
		if err := started.plane.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
