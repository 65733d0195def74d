package stories

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// uninstalled takes the installation of the other tests away, for a test that installs what it wants instead. The namespace is
// none that `lateen install` has made, so it stays until it is deleted.
func uninstalled(t *testing.T) {
	t.Helper()
	run(t, "lateen", "uninstall", "--force")
	kubectl(t, "delete", "namespace", "velero")
	kubectl(t, "delete", "customresourcedefinitions", "--selector=component=velero")
	t.Cleanup(func() { require.NoError(t, install()) })
}

// The commands of docs/adopt.md lead from Velero's agents to a backup with Lateen's, and back.
func TestThreeCommandsLeadToABackup(t *testing.T) {
	uninstalled(t)
	require.NoError(t, installWith("velero", "--image=velero/velero:v1.18.3", "--use-node-agent"))
	t.Cleanup(func() { velero(t, "uninstall", "--force", "--wait") })
	agentsRun(t, "velero/velero")
	newUploadApp(t, "my-app")
	page, err := os.ReadFile("../../../docs/adopt.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)make cluster-test runs and times them -->\n```console\n(.*?)\n```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 2, "there and back")
	for i, agent := range []string{"lateen:cluster", "velero/velero"} {
		t.Log(run(t, "lateen", "check", "--pre")) // fails if anything is missing
		begun := time.Now()
		commands := strings.Split(strings.ReplaceAll(blocks[i][1], "registry.example/lateen:v1", "lateen:cluster"), "\n")
		require.Len(t, commands, 3-i)
		for _, command := range commands {
			words := strings.Fields(command)
			feed(t, "y\n", words[0], words[1:]...)
		}
		took := time.Since(begun)
		t.Logf("to %s: %s", agent, took.Round(time.Second))
		require.Less(t, took, 2*time.Minute)
		agentsRun(t, agent)
	}
	completed(t, "backup", "first")
	require.Equal(t, []string{"Completed"}, phases(t, "datauploads", "velero.io/backup-name=first"))
}

// The agents of two nodes are exchanged one after the other. One upload has its mover on the second node meanwhile. The other is
// accepted by an agent of Velero's and waits for its snapshot: whichever agent makes it ready, nobody takes the snapshot away.
func TestAdoptOnTwoNodesLeavesUploadsInFlightAlone(t *testing.T) {
	uninstalled(t)
	require.NoError(t, installWith("velero", "--image=velero/velero:v1.18.3", "--use-node-agent"))
	t.Cleanup(func() { velero(t, "uninstall", "--force", "--wait") })
	agentsRun(t, "velero/velero")
	worker(t)
	adopt := func() {
		run(t, "lateen", "adopt", "--force", "--lateen-image=lateen:cluster")
		agentsRun(t, "lateen:cluster")
	}
	undo := func() {
		run(t, "lateen", "adopt", "--undo", "--force")
		agentsRun(t, "velero/velero")
	}
	t.Cleanup(func() { // for Velero's uninstall; the test may have done it
		_ = command(context.WithoutCancel(t.Context()), "lateen", "adopt", "--undo", "--force").Run()
	})

	h := holdUpload(t, newWorkerApp(t, "two-nodes"), "two-nodes").isOn(t, "worker")
	adopt()
	h.undisturbed(t)
	h.ends(t)

	undo()
	a := newWorkerApp(t, "two-agents")
	a.backup("two-agents-first", "--snapshot-move-data")
	wrong(t, `{"ListSnapshots":{"error":"the array is busy"}}`)
	velero(t, "backup", "create", "two-agents", "--include-namespaces=two-agents", "--snapshot-move-data")
	upload := first(t, "datauploads", "velero.io/backup-name=two-agents")
	wait(t, "jsonpath={.status.phase}=Accepted", "dataupload/"+upload, "--namespace=velero")
	// While Velero's agent exposes a snapshot, it alone knows the handle: nobody can go on with what it leaves before this.
	until(t, "{.metadata.name}", func(string) bool { return true }, "volumesnapshotcontents", "--field-selector=metadata.name="+upload)
	adopt()
	wrong(t, "{}")
	held{app: a, backup: "two-agents", kind: "datauploads"}.ends(t)
	undo()
}

// The chart is upgraded and rolled back while an upload runs: both replace the agent, and neither its mover.
func TestTheChartIsUpgradedAndRolledBackUnderATransferInFlight(t *testing.T) {
	uninstalled(t)
	require.NoError(t, installWith("velero", "--image=velero/velero:v1.18.3"))
	t.Cleanup(func() { velero(t, "uninstall", "--force", "--wait") })
	helm := func(args ...string) (agent string) {
		run(t, "helm", append(args, "--namespace=velero", "--wait")...)
		agentsRun(t, "lateen:cluster")
		return get(t, "{.items[*].metadata.uid}", "pods", "--namespace=velero", "--selector=name=node-agent", "--field-selector=status.phase=Running")
	}
	upgrade := []string{"upgrade", "--install", "lateen", "../../../deploy/chart", "--set=image.repository=lateen,image.tag=cluster"}
	first := helm(upgrade...)
	t.Cleanup(func() { run(t, "helm", "uninstall", "lateen", "--namespace=velero", "--wait") })

	h := holdUpload(t, newUploadApp(t, "charted"), "charted")
	second := helm(append(upgrade, "--set=nodeAgent.extraArgs={--mover-retries=4}")...)
	require.NotEqual(t, first, second)
	h.undisturbed(t)
	require.NotEqual(t, second, helm("rollback", "lateen", "1"))
	h.undisturbed(t)
	h.ends(t)
}

// agentsRun waits until all agents are of an image.
func agentsRun(t *testing.T, image string) {
	t.Helper()
	kubectl(t, "rollout", "status", "--namespace=velero", "daemonset/node-agent", "--timeout="+patience.String())
	require.Contains(t, get(t, "{.spec.template.spec.containers[0].image}", "daemonset", "node-agent", "--namespace=velero"), image)
}
