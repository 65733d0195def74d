package stories

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// app is a namespace with one pod that has volumes with known content.
type app struct {
	t         *testing.T
	namespace string
	paths     []string // where the pod has its volumes
}

// contents fills the directory $1: files of random bytes, modes, owners, an empty directory and a link.
const contents = `set -e; cd "$1"; mkdir -p deep/er empty
dd if=/dev/urandom of=random bs=1M count=8 2>/dev/null; dd if=/dev/urandom of=deep/er/small bs=1000 count=3 2>/dev/null
echo "#!/bin/sh" >deep/script; : >nothing; ln -s ../random deep/link
chmod 0750 deep/script; chmod 0600 random; chmod 0711 deep; chown 1234:4321 random deep/er`

// fingerprint prints every entry below the directory $1 with its type, mode, owner and size, and the hash of every file.
// The size of a directory is the file system's own affair, and .velero is how Velero's init container knows that a restore is done.
// Of a device it prints the hash.
const fingerprint = `set -e; [ ! -b "$1" ] || exec sha256sum "$1"; cd "$1"; list() { find . -path ./.velero -prune -o "$@" | sort; }
list ! -type d -exec stat -c '%n %F %a %u:%g %s' {} +; list -type d -exec stat -c '%n %F %a %u:%g' {} +
list -type f -exec sha256sum {} +; list -type l -exec readlink {} +`

const manifest = `
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim, namespace: %[1]s}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: app, namespace: %[1]s}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: app
    image: localhost/tools:v1
    command: [/bin/sh, -c, "sleep 1000000"]
    ` + mounts + `
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: claim, persistentVolumeClaim: {claimName: claim}}
`

const mounts = "volumeMounts: [{name: scratch, mountPath: /scratch}, {name: claim, mountPath: /claim}]"

// replaced returns the manifest with other texts in place of some, which it must have.
func replaced(oldNew ...string) string {
	text := manifest
	for pair := range slices.Chunk(oldNew, 2) {
		if !strings.Contains(text, pair[0]) {
			panic("the manifest has no " + pair[0])
		}
		text = strings.Replace(text, pair[0], pair[1], 1)
	}
	return text
}

// newApp makes one with an emptyDir and a claim, both filled, of the manifest with these changes.
func newApp(t *testing.T, namespace string, oldNew ...string) *app {
	t.Helper()
	a := &app{t: t, namespace: namespace, paths: []string{"/scratch", "/claim"}}
	a.deploy(replaced(oldNew...))
	for _, path := range a.paths {
		a.sh(contents, path)
	}
	return a
}

// deploy creates the namespace with what a manifest has in it, which is gone after the test.
func (a *app) deploy(manifest string) {
	a.t.Helper()
	a.t.Cleanup(func() { kubectl(a.t, "delete", "namespace", a.namespace, "--ignore-not-found", "--wait=false") })
	feed(a.t, fmt.Sprintf(manifest, a.namespace), "kubectl", "apply", "-f", "-")
	a.ready()
}

func (a *app) ready() { wait(a.t, "condition=Ready", "pod/app", "--namespace="+a.namespace) }

func (a *app) sh(script, arg string) string {
	a.t.Helper()
	return kubectl(a.t, "exec", "--namespace="+a.namespace, "app", "--", "/bin/sh", "-c", script, "sh", arg)
}

// prints are the fingerprints of all volumes, by the paths in the pod.
func (a *app) prints() map[string]string {
	a.t.Helper()
	all := map[string]string{}
	for _, path := range a.paths {
		all[path] = a.sh(fingerprint, path)
		if !strings.HasPrefix(path, "/dev/") {
			require.Contains(a.t, all[path], "./random regular file 600 1234:4321 8388608")
		}
	}
	return all
}

// lose deletes the namespace. Its pods and claims go first: the namespace controller looks for what is left only every few seconds.
func (a *app) lose() {
	a.t.Helper()
	kubectl(a.t, "delete", "pods,persistentvolumeclaims", "--all", "--namespace="+a.namespace, "--now")
	kubectl(a.t, "delete", "namespace", a.namespace)
}

// backup makes a backup of the namespace with Velero's command line, and returns once it has completed.
func (a *app) backup(name string, args ...string) {
	a.t.Helper()
	velero(a.t, append([]string{"backup", "create", name, "--include-namespaces=" + a.namespace, "--wait"}, args...)...)
	ended(a.t, "backup", name, "Completed")
}

// restore makes a restore of a backup, and waits until all volumes have what they had before.
func (a *app) restore(backup string, before map[string]string) {
	a.t.Helper()
	velero(a.t, "restore", "create", backup, "--from-backup="+backup, "--wait")
	a.restored(backup, before)
}

func (a *app) restored(backup string, before map[string]string) {
	a.t.Helper()
	ended(a.t, "restore", backup, "Completed")
	a.ready()
	require.Equal(a.t, before, a.prints())
}

// comesBack makes a backup of the namespace, deletes and restores it, and requires that all volumes have what they had, by one
// transfer of each kind for each volume.
func (a *app) comesBack(upload, download string, args ...string) {
	a.t.Helper()
	before, done := a.prints(), slices.Repeat([]string{"Completed"}, len(a.paths))
	a.backup(a.namespace, args...)
	require.Equal(a.t, done, phases(a.t, upload, "velero.io/backup-name="+a.namespace))
	a.lose()
	if upload == "datauploads" {
		wait(a.t, "delete", "volumesnapshotcontents", "--all") // a snapshot whose data is moved does not stay
	}
	a.restore(a.namespace, before)
	require.Equal(a.t, done, phases(a.t, download, "velero.io/restore-name="+a.namespace))
	noMoverLeft(a.t)
}

// noMoverLeft waits until no pod and no claim of a transfer is left in Velero's namespace. The cache of a repository stays.
func noMoverLeft(t *testing.T) {
	t.Helper()
	wait(t, "delete", "pods,persistentvolumeclaims", "--namespace=velero", "--selector=velero.io/exclude-from-backup=true,!velero.io/repo-name")
}

func velero(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "velero", args...)
}

// phases are those of all transfers of a kind that have a label.
func phases(t *testing.T, kind, label string) []string {
	t.Helper()
	return strings.Fields(get(t, "{.items[*].status.phase}", kind, "--namespace=velero", "--selector="+label))
}

// Movers are held up by their backup storage: the S3 server stands still from when the server has made the transfer.

// service kills, revives, freezes or thaws a process of the node.
func service(t *testing.T, act, name string) {
	t.Helper()
	run(t, "realcluster", act, "--bin="+os.Getenv("LATEEN_BIN"), "--dir="+os.Getenv("LATEEN_CLUSTER"), name)
}

// held is a transfer whose mover runs and waits for the S3 server.
type held struct {
	app    *app
	backup string
	kind   string // the transfer's resource
	mover  string // the pod's name, which is that of the transfer, and which the next attempt's has too
	uid    string
	before map[string]string // of a restore: what has to come back
}

// hold makes a backup with arg of an application whose repository is there already, and holds its mover.
func hold(t *testing.T, a *app, backup, kind, arg string) held {
	t.Helper()
	a.backup(backup+"-first", arg)
	velero(t, "backup", "create", backup, "--include-namespaces="+a.namespace, arg)
	return held{app: a, backup: backup, kind: kind}.caught(t, "velero.io/backup-name="+backup)
}

// holdRestore loses an application that was backed up with args, begins to restore it, and holds the mover.
func holdRestore(t *testing.T, a *app, backup, kind string, args ...string) held {
	t.Helper()
	before := a.prints()
	a.backup(backup, args...)
	a.lose()
	velero(t, "restore", "create", backup, "--from-backup="+backup)
	return held{app: a, backup: backup, kind: kind, before: before}.caught(t, "velero.io/restore-name="+backup)
}

// caught stops the S3 server as soon as the transfer is there, and returns when its mover runs.
func (h held) caught(t *testing.T, label string) held {
	t.Helper()
	h.mover = first(t, h.kind, label)
	service(t, "freeze", "versitygw")
	t.Cleanup(func() { service(t, "thaw", "versitygw") })
	wait(t, "jsonpath={.status.phase}=InProgress", h.kind+"/"+h.mover, "--namespace=velero")
	wait(t, "condition=Ready", "pod/"+h.mover, "--namespace=velero")
	h.uid = get(t, "{.metadata.uid}", "pod", h.mover, "--namespace=velero")
	return h
}

// ends lets the mover go on, and checks that the backup or restore completes and that the application is as it was.
func (h held) ends(t *testing.T) {
	t.Helper()
	service(t, "thaw", "versitygw")
	if h.before == nil {
		ended(t, "backup", h.backup, "Completed")
		before := h.app.prints()
		h.app.lose()
		h.app.restore(h.backup, before)
	} else {
		h.app.restored(h.backup, h.before)
	}
	noMoverLeft(t)
}

// ended waits until a backup or restore is in the phase, or in another one that it never leaves, which fails.
func ended(t *testing.T, kind, name, phase string) {
	t.Helper()
	seen := until(t, "{.status.phase}", func(phase string) bool {
		return slices.Contains([]string{"Completed", "PartiallyFailed", "Failed", "FailedValidation"}, phase) // and not FinalizingPartiallyFailed
	}, kind+".velero.io", "--field-selector=metadata.name="+name)
	if seen != phase {
		transfers := get(t, `{range .items[*]}{.kind} {.metadata.name} {.status.phase}: {.status.message}{"\n"}{end}`,
			"podvolumebackups,podvolumerestores,datauploads,datadownloads", "--namespace=velero", "--selector=velero.io/"+kind+"-name="+name)
		require.Equal(t, phase, seen, "%s\n%s\n%s", transfers, velero(t, kind, "describe", name, "--details"),
			kubectl(t, "logs", "--namespace=velero", "deployment/velero", "--tail=100"))
	}
}

// first is the name of the first object of a kind with a label that there is.
func first(t *testing.T, kind, label string) string {
	t.Helper()
	return until(t, "{.metadata.name}", func(string) bool { return true }, kind, "--selector="+label)
}

// restarted waits until the mover's next attempt runs.
func (h held) restarted(t *testing.T) {
	t.Helper()
	until(t, "{.metadata.uid} {.status.phase}", func(line string) bool {
		return !strings.Contains(line, h.uid) && strings.HasSuffix(line, " Running")
	}, "pods", "--field-selector=metadata.name="+h.mover)
}

// until watches objects in Velero's namespace until one is as wanted, by the fields that a JSONPath prints.
func until(t *testing.T, path string, wanted func(string) bool, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watching := command(ctx, "kubectl", append([]string{"get", "--namespace=velero", "--watch", "--output=jsonpath=" + path + `{"\n"}`}, args...)...)
	var complaints bytes.Buffer
	watching.Stderr = &complaints
	output, err := watching.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, watching.Start())
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if wanted(lines.Text()) {
			cancel()
			_ = watching.Wait() // It was killed.
			return lines.Text()
		}
	}
	err = watching.Wait()
	require.Fail(t, "nothing was as wanted", "kubectl get %s: %v\n%s", strings.Join(args, " "), err, complaints.String())
	return ""
}

// newUploadApp is an app of whose volumes only the claim counts: an emptyDir has no snapshot.
func newUploadApp(t *testing.T, namespace string, oldNew ...string) *app {
	t.Helper()
	a := newApp(t, namespace, oldNew...)
	a.paths = []string{"/claim"}
	return a
}

// newWorkerApp is newUploadApp with a pod that has to be on the second node.
func newWorkerApp(t *testing.T, namespace string, oldNew ...string) *app {
	t.Helper()
	there := "nodeSelector: {kubernetes.io/hostname: worker}\n  terminationGracePeriod"
	return newUploadApp(t, namespace, append(oldNew, "terminationGracePeriod", there)...)
}

// newClaimApp is an app whose emptyDir is left out of backups, so that a backup has one mover.
func newClaimApp(t *testing.T, namespace string) *app {
	t.Helper()
	a := newUploadApp(t, namespace)
	kubectl(t, "annotate", "pod", "app", "--namespace="+namespace, "backup.velero.io/backup-volumes-excludes=scratch")
	return a
}

// newBlockApp is an app whose claim is a block device.
func newBlockApp(t *testing.T, namespace string) *app {
	t.Helper()
	a := &app{t: t, namespace: namespace, paths: []string{"/dev/claim"}}
	a.deploy(replaced("accessModes:", "volumeMode: Block\n  accessModes:", mounts, "volumeDevices: [{name: claim, devicePath: /dev/claim}]"))
	a.sh(`dd if=/dev/urandom of="$1" bs=1M count=32 conv=fsync`, "/dev/claim")
	return a
}
