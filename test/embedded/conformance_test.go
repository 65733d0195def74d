package embedded_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/conformance"
)

// mostReal is the number of conformance cases that need the real control plane.
const mostReal = 7

// Each case has a cluster of its own. The package conformance plays them on the real control plane, and records how they end.
func TestTheAgentConforms(t *testing.T) {
	all, err := conformance.Cases()
	require.NoError(t, err)
	agent, err := conformance.AgentNamed("lateen")
	require.NoError(t, err)
	skipped := 0
	for _, testCase := range all {
		if testCase.NeedsRealControlPlane() {
			skipped++
			continue
		}
		t.Run(string(testCase.Kind)+"/"+testCase.Title, func(t *testing.T) {
			t.Parallel()
			on, end, err := conformance.NewPlane(t.Context(), start(t), t.TempDir())
			t.Cleanup(end)
			require.NoError(t, err)
			status, err := on.Play(t.Context(), agent, testCase, t.TempDir())
			require.NoError(t, err)
			require.NoError(t, testCase.CompareStatus(status), "the embedded cluster is unlike the real control plane")
		})
	}
	require.LessOrEqual(t, skipped, mostReal)
}
