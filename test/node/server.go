package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// VeleroServer is the real Velero server, running for one thing: only it can initialise a repository.
type VeleroServer struct {
	stop  context.CancelFunc
	ended chan struct{}
	log   string
}

// ServerOptions say what a Velero server needs.
type ServerOptions struct {
	Velero     string // the binary
	Kubeconfig string // with Velero's own rights
	Namespace  string
	Dir        string   // for its scratch files and log
	Args       []string // further ones
}

// StartVeleroServer starts it; repositories become Ready within some 20 s of their creation. It ends with the
// context, or by Stop, and never outlives this process.
func StartVeleroServer(ctx context.Context, options ServerOptions) (*VeleroServer, error) {
	plugins, scratch := filepath.Join(options.Dir, "plugins"), filepath.Join(options.Dir, "scratch")
	for _, dir := range []string{plugins, scratch} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make directory of Velero's server: %w", err)
		}
	}
	s := &VeleroServer{ended: make(chan struct{}), log: filepath.Join(options.Dir, "velero-server.log")}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, fmt.Errorf("make log of Velero's server: %w", err)
	}
	defer log.Close()
	ctx, s.stop = context.WithCancel(ctx)
	command := exec.CommandContext(ctx, options.Velero, append([]string{
		"server", "--kubeconfig", options.Kubeconfig, "--namespace", options.Namespace, "--plugin-dir", plugins,
		"--metrics-address", "127.0.0.1:0", "--profiler-address", "127.0.0.1:0", "--disable-controllers", strings.Join(idle(), ","),
	}, options.Args...)...)
	command.Env = append(os.Environ(), "VELERO_NAMESPACE="+options.Namespace, "VELERO_SCRATCH_DIR="+scratch, "HOME="+scratch)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// The group is the server and the plugins that it runs.
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	if err := s.run(command); err != nil {
		s.stop()
		return nil, fmt.Errorf("start Velero's server: %w", err)
	}
	return s, nil
}

// run starts the server and waits for its end on one thread, with which the kernel would end it.
func (s *VeleroServer) run(command *exec.Cmd) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(s.ended)
		err := command.Start()
		started <- err
		if err == nil {
			_ = command.Wait() // how it ended is in its log
		}
	}()
	return <-started
}

// idle are the controllers that have nothing to do with repositories.
func idle() []string {
	return []string{
		"backup-queue", "backup", "backup-operations", "backup-deletion", "backup-finalizer", "backup-sync", "download-request",
		"gc", "restore", "restore-operations", "schedule", "server-status-request", "restore-finalizer",
	}
}

// Log is the file that it writes to.
func (s *VeleroServer) Log() string { return s.log }

// Ended is closed when the process is gone.
func (s *VeleroServer) Ended() <-chan struct{} { return s.ended }

// Stop ends the process, with those that it has started, and returns when it is gone.
func (s *VeleroServer) Stop() {
	s.stop()
	<-s.ended
}
