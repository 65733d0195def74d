package stories

import "testing"

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
