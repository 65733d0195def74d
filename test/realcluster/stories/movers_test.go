package stories

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAFileSystemBackupOfAnEmptyDirAndAClaimComesBack(t *testing.T) {
	newApp(t, "shop").comesBack("podvolumebackups", "podvolumerestores", "--default-volumes-to-fs-backup")
}

func TestTheDataOfASnapshotIsMovedThereAndBack(t *testing.T) {
	newUploadApp(t, "bank").comesBack("datauploads", "datadownloads", "--snapshot-move-data")
}

func TestTheDataOfABlockVolumeIsMovedThereAndBack(t *testing.T) {
	newBlockApp(t, "raw").comesBack("datauploads", "datadownloads", "--snapshot-move-data")
}

// Only make velero-checkout runs it: the block mover of Velero's next version moves a device.
func TestCheckoutMovesBlocks(t *testing.T) {
	definitions := run(t, "velero", "install", "--crds-only", "--dry-run", "--output=yaml")
	feed(t, definitions, "kubectl", "apply", "--server-side", "--force-conflicts", "--filename=-")
	newBlockApp(t, "blocks").comesBack("datauploads", "datadownloads", "--snapshot-move-data", "--data-mover=velero-block")
	for _, kind := range []string{"datauploads", "datadownloads"} {
		require.Equal(t, "velero-block", get(t, "{.items[*].spec.datamover}", kind, "--namespace=velero"))
	}
}

// A claim of which a pod mounts a subPath is backed up whole. Of the other two volumes, which the pod asks for too, Velero's
// server makes no transfers: a hostPath is the node's, and the kubelet writes a projected volume anew.
func TestSubPathsComeBackAndVolumesOfTheNodeDoNot(t *testing.T) {
	a := &app{t: t, namespace: "mixed", paths: []string{"/claim"}}
	a.deploy(replaced(
		mounts, "volumeMounts: [{name: claim, mountPath: /claim, subPath: part/of/it}, {name: host, mountPath: /host}, {name: facts, mountPath: /facts}]",
		"{name: scratch, emptyDir: {}}", `{name: host, hostPath: {path: /var/log, type: Directory}}
  - name: facts
    projected: {sources: [{downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}`))
	kubectl(t, "annotate", "pod", "app", "--namespace=mixed", "backup.velero.io/backup-volumes=claim,host,facts")
	a.sh(contents, "/claim")
	a.comesBack("podvolumebackups", "podvolumerestores")
	require.Equal(t, "app", a.sh(`cat "$1"`, "/facts/name"))
}

// configure gives the agents a configuration for the rest of the test. Agents read it as they start.
func configure(t *testing.T, config string) {
	t.Helper()
	set := func(config string) {
		kubectl(t, "patch", "configmap", "node-agent-config", "--namespace=velero", "--type=merge", "--patch", `{"data":{"config.json":`+strconv.Quote(config)+`}}`)
		kubectl(t, "rollout", "restart", "--namespace=velero", "daemonset/node-agent")
		kubectl(t, "rollout", "status", "--namespace=velero", "daemonset/node-agent", "--timeout="+patience.String())
	}
	t.Cleanup(func() { set("{}") })
	set(config)
}

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
		require.Regexp(t, "^(Startup|Readiness) probe failed: ", warning, "an agent may need a while to listen and to be ready where the machine is busy")
	}
	run(t, "lateen", "check")
}

// A second backup of files, one of a snapshot and one of a block volume are verified, and nothing is left, also of a class that retains
// volumes. The files are not verified any more once the repository has lost data.
func TestABackupIsVerifiedUntilItsRepositoryLosesData(t *testing.T) {
	files := newApp(t, "checked")
	files.backup("checked-first", "--default-volumes-to-fs-backup")
	files.backup("checked", "--default-volumes-to-fs-backup")
	newUploadApp(t, "moved").backup("moved", "--snapshot-move-data")
	newBlockApp(t, "device").backup("device", "--snapshot-move-data")
	feed(t, `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: retained}, reclaimPolicy: Retain, provisioner: `+
		get(t, "{.items[0].provisioner}", "storageclasses")+`}`, "kubectl", "apply", "-f", "-")
	t.Cleanup(func() { kubectl(t, "delete", "storageclass", "retained") })
	for backup, restored := range map[string]string{"checked": "2", "moved": "1", "device": "1"} {
		require.Contains(t, run(t, "lateen", "verify", "--backup="+backup, "--force", "--storage-class=retained"), "all volumes are verified: "+restored+" restored, 0 empty")
	}
	require.Contains(t, run(t, "lateen", "verify", "--backup=moved", "--force"), "all volumes are verified: 1 restored, 0 empty")
	noScratchLeft(t)
	packs, err := filepath.Glob(filepath.Join(os.Getenv("LATEEN_CLUSTER"), "s3", "buckets", "backups", "kopia", "checked", "p*"))
	require.NoError(t, err)
	require.NotEmpty(t, packs)
	for _, each := range packs {
		require.NoError(t, os.Remove(each))
	}
	output, err := command(t.Context(), "lateen", "verify", "--backup=checked", "--force").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(output), "0 volumes are verified, 2 failed", string(output))
	noScratchLeft(t)

	bundle := filepath.Join(t.TempDir(), "bundle.tar.gz")
	run(t, "lateen", "bundle", "--file="+bundle)
	reported, err := exec.CommandContext(t.Context(), "tar", "--extract", "--verbose", "--to-stdout", "--file="+bundle).CombinedOutput()
	require.NoError(t, err, "%s", reported)
	require.Contains(t, string(reported), "Begin of mover log", "logs of agents, read from their kubelet")
	require.Regexp(t, `logs/velero-[^/]+/velero.log\n`, string(reported), "and of Velero's server")
	require.NotContains(t, string(reported), "lateen-secret", "the key of the bucket")
}

// noScratchLeft waits until nothing of `lateen verify` is left, and no volume of a claim in Velero's namespace.
func noScratchLeft(t *testing.T) {
	t.Helper()
	require.Empty(t, get(t, "{.items[*].metadata.name}", "datadownloads", "--namespace=velero", "--selector=lateen.dev/verify"))
	wait(t, "delete", "persistentvolumeclaims", "--namespace=velero", "--selector=lateen.dev/verify")
	noMoverLeft(t)
	for volume := range strings.FieldsSeq(get(t, `{.items[?(@.spec.claimRef.namespace=="velero")].metadata.name}`, "persistentvolumes")) {
		wait(t, "delete", "persistentvolume/"+volume)
	}
}
