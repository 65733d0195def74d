package csi

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/lateen-project/lateen/test/process"
)

// SnapshotController is a running process of the real snapshot-controller of kubernetes-csi.
type SnapshotController struct {
	process *process.Process
}

// ControllerOptions configure the snapshot-controller.
type ControllerOptions struct {
	Binary     string // bin/snapshot-controller
	Kubeconfig string // with permissions for all snapshot resources, claims, volumes, nodes and Events
	Dir        string // for its log
}

// StartSnapshotController starts the process. It ends by Stop, or with this process.
func StartSnapshotController(options ControllerOptions) (*SnapshotController, error) {
	log, err := os.Create(filepath.Join(options.Dir, "snapshot-controller.log"))
	if err != nil {
		return nil, fmt.Errorf("make log of snapshot-controller: %w", err)
	}
	defer log.Close()
	command := exec.Command(options.Binary,
		"--kubeconfig="+options.Kubeconfig, "--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=20",
		"--retry-interval-start=100ms", "--retry-interval-max=2s", "--feature-gates=CSIVolumeGroupSnapshot=false", "--v=4",
	)
	command.Stdout, command.Stderr = log, log
	started, err := process.Start(command)
	if err != nil {
		return nil, err
	}
	return &SnapshotController{process: started}, nil
}

// Stop kills the process and waits for its end. A new process continues its work.
func (s *SnapshotController) Stop() error { return s.process.Kill() }
