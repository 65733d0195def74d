package e2e

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

// startTimeout bounds the start of a control plane.
const startTimeout = 3 * time.Minute

// controlPlane is a control plane with the resource definitions of one version of Velero, from the first test on that needs it.
type controlPlane struct {
	start   sync.Once
	running *cluster.Cluster
	err     error
}

// planes has the control planes of this test binary by Velero's binary.
var planes = map[string]*controlPlane{"velero": {}, "velero-1.17": {}}

// planeOf returns the control plane for a version of Velero.
func planeOf(t *testing.T, velero string) *cluster.Cluster {
	t.Helper()
	p := planes[velero]
	p.start.Do(func() { p.err = p.begin(binary(t, velero)) })
	require.NoError(t, p.err)
	return p.running
}

func (c *controlPlane) begin(velero string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if c.running, err = cluster.Start(ctx, cluster.Options{}); err != nil {
		return err
	}
	if err := testenv.InstallCRDsOf(ctx, c.running.Admin(), velero); err != nil {
		return err
	}
	_, err = testenv.ServeSnapshots(ctx, c.running) // the snapshot-controller ends with this process
	return err
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, p := range planes {
		if p.running == nil {
			continue
		}
		if err := p.running.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
