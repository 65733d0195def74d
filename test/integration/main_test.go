// Package integration runs agents in a cluster with simulated kubelets and movers. Each test has an embedded cluster of its own, except
// those whose names end with OnKubernetes. They need what the embedded cluster lacks, such as rights, quotas, webhooks and preemption,
// and share a real control plane, where agents have the rights that package deploy gives them.
package integration

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/embedded"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// controlPlane is the real control plane of this test binary, from the first test on that needs it.
type controlPlane struct {
	start   sync.Once
	running *cluster.Cluster
	err     error
}

var shared controlPlane

// startTimeout bounds the start of the real control plane.
const startTimeout = 3 * time.Minute

func (p *controlPlane) get() (*cluster.Cluster, error) {
	p.start.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if p.running, p.err = cluster.Start(ctx, cluster.Options{}); p.err != nil {
			return
		}
		if p.err = testenv.InstallCRDs(ctx, p.running.Admin()); p.err != nil {
			return
		}
		_, p.err = testenv.ServeSnapshots(ctx, p.running) // the snapshot-controller ends with this process
	})
	return p.running, p.err
}

// planeOf returns the cluster for a test.
func planeOf(t *testing.T) fixture.Plane {
	t.Helper()
	if strings.Contains(t.Name(), "OnKubernetes") {
		plane, err := shared.get()
		require.NoError(t, err)
		return plane
	}
	plane, err := embedded.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	return plane
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.running != nil {
		for _, err := range []error{refused(shared.running), shared.running.Stop()} {
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	os.Exit(code)
}
