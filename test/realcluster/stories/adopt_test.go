package stories

import (
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

// The commands of docs/first-ten-minutes.md lead from Velero's agents to a backup with Lateen's, and back.
func TestTheFirstTenMinutes(t *testing.T) {
	uninstalled(t)
	require.NoError(t, installWith("velero", "--image=velero/velero:v1.18.3", "--use-node-agent"))
	t.Cleanup(func() { velero(t, "uninstall", "--force", "--wait") })
	agentsRun(t, "velero/velero")
	newUploadApp(t, "my-app")
	blocks, begun := blocks(t, "first-ten-minutes"), time.Now()
	require.Len(t, blocks, 5)
	runAll(t, blocks[0])
	agentsRun(t, "lateen:cluster")
	runAll(t, blocks[1])
	ended(t, "backup", "first", "Completed")
	require.Equal(t, []string{"Completed"}, phases(t, "datauploads", "velero.io/backup-name=first"))
	wrong(t, `{"CreateSnapshot":{"lost":true}}`)
	runAll(t, blocks[2])
	first(t, "datauploads", "velero.io/backup-name=second")
	runAll(t, blocks[3])
	require.Equal(t, []string{"Canceled"}, phases(t, "datauploads", "velero.io/backup-name=second"))
	noMoverLeft(t)
	wait(t, "delete", "volumesnapshots,volumesnapshotcontents", "--all-namespaces", "--all") // the sidecar has never reported the snapshot
	wrong(t, "{}")
	runAll(t, blocks[4])
	agentsRun(t, "velero/velero")
	require.Less(t, time.Since(begun), 10*time.Minute)
}

// blocks are the commands of a page that are for this cluster.
func blocks(t *testing.T, page string) (all [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/" + page + ".md")
	require.NoError(t, err)
	for _, found := range regexp.MustCompile("(?s)make cluster-test runs .*?-->\n```console\n(.*?)\n```").FindAllStringSubmatch(string(text), -1) {
		all = append(all, strings.Split(strings.ReplaceAll(found[1], "registry.example/lateen:v1", "lateen:cluster"), "\n"))
	}
	return all
}

// runAll runs and logs commands, and says yes to each that asks.
func runAll(t *testing.T, commands []string) {
	t.Helper()
	for _, command := range commands {
		output := "y\n"
		for part := range strings.SplitSeq(command, " | ") {
			words := strings.Fields(part)
			output = feed(t, output, words[0], words[1:]...)
		}
		t.Logf("$ %s\n%s", command, output)
	}
}

// Velero is upgraded by the commands of docs/upgrade.md. What the old version has backed up comes back, the next mover is of the new
// version, and so are Velero's agents after the way back.
func TestVeleroIsUpgradedUnderAdoptedAgents(t *testing.T) {
	uninstalled(t)
	require.NoError(t, installWith("velero-1.17", "--image=velero/velero:v1.17.2", "--use-node-agent"))
	t.Cleanup(func() { velero(t, "uninstall", "--force", "--wait") })
	run(t, "lateen", "adopt", "--force", "--lateen-image=lateen:cluster")
	agentsRun(t, "lateen:cluster")
	a := newUploadApp(t, "upgraded")
	before := a.prints()
	a.backup("upgraded-first", "--snapshot-move-data")
	a.lose()

	for _, each := range blocks(t, "upgrade") {
		runAll(t, each)
	}
	a.restore("upgraded-first", before)
	velero(t, "backup", "create", "upgraded", "--include-namespaces=upgraded", "--snapshot-move-data")
	h := held{app: a, backup: "upgraded", kind: "datauploads"}.caught(t, "velero.io/backup-name=upgraded")
	require.Equal(t, "velero/velero:v1.18.3", get(t, "{.spec.containers[0].image}", "pod", h.mover, "--namespace=velero"))
	h.ends(t)
	run(t, "lateen", "adopt", "--undo", "--force")
	agentsRun(t, "velero/velero:v1.18.3")
}

// agentsRun waits until all agents are of an image.
func agentsRun(t *testing.T, image string) {
	t.Helper()
	kubectl(t, "rollout", "status", "--namespace=velero", "daemonset/node-agent", "--timeout="+patience.String())
	require.Contains(t, get(t, "{.spec.template.spec.containers[0].image}", "daemonset", "node-agent", "--namespace=velero"), image)
}
