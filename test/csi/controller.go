package csi

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// SnapshotController is the real snapshot-controller of kubernetes-csi, running.
type SnapshotController struct {
	command *exec.Cmd
	ended   chan struct{}
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
	s := &SnapshotController{ended: make(chan struct{}), log: filepath.Join(options.Dir, "snapshot-controller.log")}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, fmt.Errorf("make log of snapshot-controller: %w", err)
	}
	defer log.Close()
	s.command = exec.Command(options.Binary, append([]string{
		"--kubeconfig=" + options.Kubeconfig, "--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=20",
		"--retry-interval-start=100ms", "--retry-interval-max=2s", "--feature-gates=CSIVolumeGroupSnapshot=false", "--v=4",
	}, options.Args...)...)
	s.command.Stdout, s.command.Stderr = log, log
	s.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.run(); err != nil {
		return nil, fmt.Errorf("start snapshot-controller: %w", err)
	}
	return s, nil
}

// run starts it and waits for its end on one thread, with which the kernel would end it.
func (s *SnapshotController) run() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(s.ended)
		err := s.command.Start()
		started <- err
		if err == nil {
			_ = s.command.Wait() // how it ended is in its log
		}
	}()
	return <-started
}

// Log is the file that it writes to.
func (s *SnapshotController) Log() string { return s.log }

// Ended is closed when the process is gone.
func (s *SnapshotController) Ended() <-chan struct{} { return s.ended }

// Stop kills the process and returns when it is gone; what it was doing another one goes on with.
func (s *SnapshotController) Stop() error {
	select {
	case <-s.ended:
		return nil // its number may be another's by now
	default:
	}
	if err := syscall.Kill(s.command.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill snapshot-controller: %w", err)
	}
	<-s.ended
	return nil
}
