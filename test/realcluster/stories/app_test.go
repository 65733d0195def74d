package stories

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
const fingerprint = `set -e; cd "$1"; list() { find . -path ./.velero -prune -o "$@" | sort; }
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
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: claim, mountPath: /claim}]
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: claim, persistentVolumeClaim: {claimName: claim}}
`

// newApp makes one with an emptyDir and a claim, both filled.
func newApp(t *testing.T, namespace string) *app {
	t.Helper()
	a := &app{t: t, namespace: namespace, paths: []string{"/scratch", "/claim"}}
	a.deploy(manifest)
	for _, path := range a.paths {
		a.sh(contents, path)
	}
	return a
}

// newWorkerApp is newApp on the second node, of whose volumes the claim counts.
func newWorkerApp(t *testing.T, namespace string) *app {
	t.Helper()
	a := &app{t: t, namespace: namespace, paths: []string{"/claim"}}
	a.deploy(onWorker())
	for _, path := range []string{"/scratch", "/claim"} {
		a.sh(contents, path)
	}
	return a
}

// onWorker is the manifest with a pod that has to be on the second node.
func onWorker() string {
	return strings.Replace(manifest, "spec:\n  terminationGracePeriod", "spec:\n  nodeSelector: {kubernetes.io/hostname: worker}\n  terminationGracePeriod", 1)
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
		require.Contains(a.t, all[path], "./random regular file 600 1234:4321 8388608")
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
	completed(a.t, "backup", name)
}

// restore makes a restore of a backup, and returns once it has completed.
func (a *app) restore(backup string) {
	a.t.Helper()
	velero(a.t, "restore", "create", backup, "--from-backup="+backup, "--wait")
	completed(a.t, "restore", backup)
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

// completed fails with Velero's own description unless the backup or restore has completed.
func completed(t *testing.T, kind, name string) {
	t.Helper()
	if phase := get(t, "{.status.phase}", kind+".velero.io", name, "--namespace=velero"); phase != "Completed" {
		require.Equal(t, "Completed", phase, "%s\n%s", velero(t, kind, "describe", name, "--details"), log(t, kind, name))
	}
}

// log is that of a backup or restore. The server has it in the bucket, which is a directory of the machine: the address that
// `velero logs` would fetch it from is one that pods alone can reach.
func log(t *testing.T, kind, name string) string {
	t.Helper()
	file := name + "-logs.gz"
	if kind == "restore" {
		file = "restore-" + file
	}
	packed, err := os.Open(filepath.Join(os.Getenv("LATEEN_CLUSTER"), "s3", "buckets", "backups", kind+"s", name, file))
	require.NoError(t, err)
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	require.NoError(t, err)
	content, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	return string(content)
}
