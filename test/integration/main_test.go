// Package integration runs agents in a cluster with simulated kubelets and movers. Each test has an embedded cluster of its own, except
// those whose names end with OnKubernetes. They need what the embedded cluster lacks, such as rights, quotas, webhooks and preemption,
// and share a real control plane, where agents have the rights that package deploy gives them.
package integration

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/embedded"
	"github.com/lateen-project/lateen/test/fixture"
)

// shared is the real control plane of this test binary.
var shared = fixture.Shared{Prepare: []fixture.Step{fixture.Definitions, fixture.Snapshots}, Check: refused}

// planeOf returns the cluster for a test.
func planeOf(t *testing.T) fixture.Plane {
	t.Helper()
	if strings.Contains(t.Name(), "OnKubernetes") {
		plane, err := shared.Plane()
		require.NoError(t, err)
		return plane
	}
	plane, err := embedded.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	return plane
}

func TestMain(m *testing.M) { os.Exit(fixture.Run(m, &shared)) }
