package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

// role is the task of a mover, from the arguments of its pod.
type role struct {
	kind       testenv.Kind
	name       string // of the resource
	volumeMode string // Filesystem or Block; pod volume movers have no such argument and use Filesystem
}

// roleOf reads the arguments of a mover pod. One of them names the resource and has the name of the label.
func roleOf(pod *corev1.Pod) (role, error) {
	for _, kind := range testenv.Kinds() {
		_, flag, _ := strings.Cut(kind.Label(), "/")
		if name := argument(pod, flag); name != "" {
			mode := argument(pod, "volume-mode")
			if mode == "" {
				mode = string(corev1.PersistentVolumeFilesystem)
			}
			return role{kind: kind, name: name, volumeMode: mode}, nil
		}
	}
	return role{}, fmt.Errorf("pod %s names no resource in its arguments", pod.Name)
}

func argument(pod *corev1.Pod, flag string) string {
	for _, container := range pod.Spec.Containers {
		for _, word := range container.Args {
			if value, ok := strings.CutPrefix(word, "--"+flag+"="); ok {
				return value
			}
		}
	}
	return ""
}

// inEvents returns the name of the resource in the Events of Velero's movers.
func (r role) inEvents() string {
	return strings.NewReplacer("DataUpload", "data upload", "DataDownload", "data download").Replace(r.kindInResults()) + " " + r.name
}

// inResults returns the name of the resource in the termination messages of Velero's movers.
func (r role) inResults() string { return r.kindInResults() + " " + r.name }

func (r role) kindInResults() string {
	return strings.NewReplacer("PodVolumeBackup", "PVB", "PodVolumeRestore", "PVR").Replace(string(r.kind))
}

func (r role) restores() bool {
	return r.kind == testenv.PodVolumeRestore || r.kind == testenv.DataDownload
}

// success returns the termination message of a successful mover (velero-protocol 3.4).
func (r role) success(transfer *testenv.Transfer, done moved) string {
	volume := fmt.Sprintf(`{"byPath":"/%s","volumeMode":"%s"}`, transfer.UID, r.volumeMode)
	if r.restores() {
		return fmt.Sprintf(`{"target":%s,"totalBytes":%d}`, volume, done.bytes)
	}
	return fmt.Sprintf(`{"snapshotID":"%s","emptySnapshot":false,"source":%s,"totalBytes":%d,"incrementalBytes":%d}`,
		done.snapshot, volume, done.bytes, done.bytes/2)
}

// leave creates the mark that the restored pod's init container waits for. Its name is the UID of the restore.
func (r role) leave(transfer *testenv.Transfer, host Host) error {
	volume := host.Volumes[string(transfer.UID)]
	if r.kind != testenv.PodVolumeRestore || volume == "" || len(transfer.OwnerReferences) == 0 {
		return nil
	}
	done := filepath.Join(volume, doneDir)
	if err := os.RemoveAll(done); err != nil {
		return fmt.Errorf("remove marks of earlier restores: %w", err)
	}
	if err := os.MkdirAll(done, 0o755); err != nil {
		return fmt.Errorf("make directory of the mark: %w", err)
	}
	if err := os.WriteFile(filepath.Join(done, string(transfer.OwnerReferences[0].UID)), nil, 0o644); err != nil {
		return fmt.Errorf("mark volume as restored: %w", err)
	}
	return nil
}

// doneDir is the directory of a volume in which Velero's movers leave the mark of a restore.
const doneDir = ".velero"
