package stories

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The agent's pod is within Pod Security's strictest standard. Movers are not: those of a file system backup see a
// directory of the node, and all of them run as root. So the standard is one to warn with, not to enforce.
func TestTheAgentKeepsToThePodSecurityStandardRestricted(t *testing.T) {
	h := hold(t, newClaimApp(t, "secure"), "secure")
	warnings := complaints(t, "kubectl", "label", "--dry-run=server", "namespace", "velero", "pod-security.kubernetes.io/enforce=restricted")
	require.NotContains(t, warnings, "node-agent")
	require.Contains(t, warnings, h.mover)
	kubectl(t, "label", "namespace", "velero", "pod-security.kubernetes.io/enforce=restricted")
	t.Cleanup(func() {
		kubectl(t, "label", "namespace", "velero", "pod-security.kubernetes.io/enforce-")
		rollOut(t)
	})
	rollOut(t) // The API server accepts the agent's pod anew.
	h.undisturbed(t)
	kubectl(t, "label", "namespace", "velero", "pod-security.kubernetes.io/enforce-")
	h.ends(t)
}

func TestTheNetworkPolicyOfTheManifestsIsAccepted(t *testing.T) {
	t.Cleanup(func() { kubectl(t, "delete", "networkpolicy", "node-agent", "--namespace=velero") })
	kubectl(t, "apply", "-f", "../../../deploy/base/networkpolicy.yaml")
	label := kubectl(t, "get", "networkpolicy", "node-agent", "--namespace=velero",
		"--output=go-template={{range $key, $value := .spec.podSelector.matchLabels}}{{$key}}={{$value}}{{end}}")
	selected := strings.Fields(get(t, "{.items[*].metadata.name}", "pods", "--namespace=velero", "--selector="+label))
	agents := strings.Fields(get(t, "{.items[*].metadata.name}", "pods", "--namespace=velero", "--selector=name=node-agent"))
	require.NotEmpty(t, agents)
	require.Equal(t, agents, selected, "the policy selects the agents alone")
}
