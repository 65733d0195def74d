package stories

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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

// hold makes a backup of the files of an application whose repository is there already, and holds its mover.
func hold(t *testing.T, a *app, backup string) held {
	t.Helper()
	a.backup(backup+"-first", "--default-volumes-to-fs-backup")
	velero(t, "backup", "create", backup, "--include-namespaces="+a.namespace, "--default-volumes-to-fs-backup")
	return held{app: a, backup: backup, kind: "podvolumebackups"}.caught(t, "velero.io/backup-name="+backup)
}

// holdUpload is hold for a backup that moves the data of a snapshot.
func holdUpload(t *testing.T, a *app, backup string) held {
	t.Helper()
	a.backup(backup+"-first", "--snapshot-move-data")
	velero(t, "backup", "create", backup, "--include-namespaces="+a.namespace, "--snapshot-move-data")
	return held{app: a, backup: backup, kind: "datauploads"}.caught(t, "velero.io/backup-name="+backup)
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
	h.uid = uid(t, h.mover)
	return h
}

// ends lets the mover go on, and checks that the backup or restore completes and that the application is as it was.
func (h held) ends(t *testing.T) {
	t.Helper()
	service(t, "thaw", "versitygw")
	if h.before == nil {
		ended(t, "backup", h.backup, "Completed")
		h.before = h.app.prints()
		h.app.lose()
		h.app.restore(h.backup)
	} else {
		ended(t, "restore", h.backup, "Completed")
	}
	h.app.ready()
	require.Equal(t, h.before, h.app.prints())
	noMoverLeft(t)
}

// undisturbed checks that the mover is still the same, and runs.
func (h held) undisturbed(t *testing.T) {
	t.Helper()
	require.Equal(t, h.uid+" Running", get(t, "{.metadata.uid} {.status.phase}", "pod", h.mover, "--namespace=velero"))
	require.Equal(t, "InProgress", get(t, "{.status.phase}", h.kind, h.mover, "--namespace=velero"))
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
		require.Equal(t, phase, seen, "%s\n%s\n%s", transfers, velero(t, kind, "describe", name, "--details"), log(t, kind, name))
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

func uid(t *testing.T, pod string) string {
	t.Helper()
	return get(t, "{.metadata.uid}", "pod", pod, "--namespace=velero")
}

// newUploadApp is an app of whose volumes only the claim counts: an emptyDir has no snapshot.
func newUploadApp(t *testing.T, namespace string) *app {
	t.Helper()
	a := newApp(t, namespace)
	a.paths = []string{"/claim"}
	return a
}

// newClaimApp is an app whose emptyDir is left out of backups, so that a backup has one mover.
func newClaimApp(t *testing.T, namespace string) *app {
	t.Helper()
	a := newApp(t, namespace)
	kubectl(t, "annotate", "pod", "app", "--namespace="+namespace, "backup.velero.io/backup-volumes-excludes=scratch")
	a.paths = []string{"/claim"}
	return a
}
