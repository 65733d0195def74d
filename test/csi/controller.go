package csi

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/lateen-project/lateen/test/process"
)

// SnapshotController is the real snapshot-controller of kubernetes-csi, running.
type SnapshotController struct {
	process *process.Process
	log     string
}

// ControllerOptions say what the snapshot-controller needs.
type ControllerOptions struct {
	Binary     string   // bin/snapshot-controller
	Kubeconfig string   // with rights to everything of snapshots, to claims, volumes, nodes and Events
	Dir        string   // for its log
	Args       []string // come after the defaults, so a flag given here wins
}

// StartSnapshotController starts it. It ends by Stop, or with this process.
func StartSnapshotController(options ControllerOptions) (*SnapshotController, error) {
	s := &SnapshotController{log: filepath.Join(options.Dir, "snapshot-controller.log")}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, fmt.Errorf("make log of snapshot-controller: %w", err)
	}
	defer log.Close()
	command := exec.Command(options.Binary, append([]string{
		"--kubeconfig=" + options.Kubeconfig, "--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=20",
		"--retry-interval-start=100ms", "--retry-interval-max=2s", "--feature-gates=CSIVolumeGroupSnapshot=false", "--v=4",
	}, options.Args...)...)
	command.Stdout, command.Stderr = log, log
	if s.process, err = process.Start(command); err != nil {
		return nil, err
	}
	return s, nil
}

// Log is the file that it writes to.
func (s *SnapshotController) Log() string { return s.log }

// Ended is closed when the process is gone.
func (s *SnapshotController) Ended() <-chan struct{} { return s.process.Ended() }

// Stop kills the process and returns when it is gone; what it was doing another one goes on with.
func (s *SnapshotController) Stop() error { return s.process.Kill() }
