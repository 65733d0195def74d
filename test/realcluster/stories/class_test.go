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

func TestMoversRunWithoutAClassThatIsMissing(t *testing.T) {
	configure(t, `{"priorityClassName":"nowhere"}`)
	h := hold(t, newClaimApp(t, "classless"), "classless")
	require.Empty(t, get(t, "{.spec.priorityClassName}", "pod", h.mover, "--namespace=velero"))
	require.Contains(t, kubectl(t, "get", "events", "--namespace=velero", "--field-selector=type=Warning", "-o=jsonpath={.items[*].message}"), "nowhere")
	h.ends(t)
}

func TestAClassThatIsDeletedLaterStopsNoBackup(t *testing.T) {
	kubectl(t, "create", "priorityclass", "short-lived", "--value=-20")
	t.Cleanup(func() { kubectl(t, "delete", "priorityclass", "short-lived", "--ignore-not-found") })
	configure(t, `{"priorityClassName":"short-lived"}`)
	a := newClaimApp(t, "orphaned")
	a.backup("orphaned-with", "--default-volumes-to-fs-backup")
	kubectl(t, "delete", "priorityclass", "short-lived")
	h := hold(t, a, "orphaned")
	require.Empty(t, get(t, "{.spec.priorityClassName}", "pod", h.mover, "--namespace=velero"))
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
