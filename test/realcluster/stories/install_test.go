package stories

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The agent is an ordinary pod: no user's rights, no path of the host, and no Warning Event at its start but that it is not ready yet.
func TestTheAgentRunsAsNobodyAndStartsWithoutAWarning(t *testing.T) {
	pod := get(t, "{.items[0].metadata.name}", "pods", "--namespace=velero", "--selector=name=node-agent")
	// A sync that the kubelet began before the first probe succeeded may set a ready pod back to not ready for a moment.
	run(t, "kubectl", "wait", "--for=condition=Ready", "pod/"+pod, "--namespace=velero", "--timeout=1m")
	require.Equal(t, "0", get(t, "{.status.containerStatuses[0].restartCount}", "pod", pod, "--namespace=velero"))
	require.Equal(t, "65532", get(t, "{.status.containerStatuses[0].user.linux.uid}", "pod", pod, "--namespace=velero"))
	require.Empty(t, get(t, "{.spec.volumes[*].hostPath.path}", "pod", pod, "--namespace=velero"))
	warnings := get(t, `{range .items[*]}{.message}{"\n"}{end}`, "events", "--namespace=velero", "--field-selector=type=Warning,involvedObject.name="+pod)
	for warning := range strings.Lines(warnings) {
		require.Contains(t, warning, "statuscode: 503", "an agent may need a while to be ready where the machine is busy")
	}
	run(t, "lateen", "check")
}
