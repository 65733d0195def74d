package stories

import "testing"

// The new configuration is for the movers to come; those that run are not disturbed.
func TestMoversGoOnWhileTheConfigMapChangesAndTheAgentsAreRolledOut(t *testing.T) {
	kubectl(t, "create", "priorityclass", "next", "--value=-30")
	t.Cleanup(func() { kubectl(t, "delete", "priorityclass", "next") })
	h := hold(t, newClaimApp(t, "rolled"), "rolled")
	configure(t, `{"priorityClassName":"next"}`)
	h.undisturbed(t)
	h.ends(t)
}

func TestAMoverGoesOnWhenItsAgentsPodIsDeleted(t *testing.T) {
	h := holdUpload(t, newUploadApp(t, "agentless"), "agentless")
	kubectl(t, "delete", "pod", "--namespace=velero", "--selector=name=node-agent")
	kubectl(t, "rollout", "status", "--namespace=velero", "daemonset/node-agent", "--timeout="+patience.String())
	h.undisturbed(t)
	h.ends(t)
}

func TestAMoverGoesOnWhileContainerdRestarts(t *testing.T) {
	h := hold(t, newClaimApp(t, "runtime"), "runtime")
	service(t, "kill", "containerd")
	service(t, "revive", "containerd")
	wait(t, "condition=Ready", "node/node")
	h.undisturbed(t)
	h.ends(t)
}
