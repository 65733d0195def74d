package stories

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMoversCarryTheClassThatTheConfigMapNames(t *testing.T) {
	kubectl(t, "create", "priorityclass", "backup-mover", "--value=-10")
	t.Cleanup(func() { kubectl(t, "delete", "priorityclass", "backup-mover", "--ignore-not-found") })
	configure(t, `{"priorityClassName":"backup-mover"}`)
	h := hold(t, newClaimApp(t, "classy"), "classy")
	require.Equal(t, "backup-mover", get(t, "{.spec.priorityClassName}", "pod", h.mover, "--namespace=velero"))
	require.Equal(t, "-10", get(t, "{.spec.priority}", "pod", h.mover, "--namespace=velero"))
	h.ends(t)
}

// configure gives the agents a configuration for the rest of the test. Agents read it as they start.
func configure(t *testing.T, config string) {
	t.Helper()
	set := func(config string) {
		kubectl(t, "patch", "configmap", "node-agent-config", "--namespace=velero", "--type=merge", "--patch", `{"data":{"config.json":`+quoted(t, config)+`}}`)
		rollOut(t)
	}
	t.Cleanup(func() { set("{}") })
	set(config)
}

// rollOut replaces all agents.
func rollOut(t *testing.T) {
	t.Helper()
	kubectl(t, "rollout", "restart", "--namespace=velero", "daemonset/node-agent")
	kubectl(t, "rollout", "status", "--namespace=velero", "daemonset/node-agent", "--timeout="+patience.String())
}
