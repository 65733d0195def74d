package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/lateen-project/lateen/test/process"
)

// VeleroServer is the real Velero server, running.
type VeleroServer struct {
	process *process.Process
	log     string
}

// ServerOptions say what a Velero server needs.
type ServerOptions struct {
	Velero     string // the binary
	Kubeconfig string // with Velero's own rights
	Namespace  string
	Dir        string // for its scratch files and log

	AllControllers bool     // else only those of repositories, which only the server can initialise
	Plugins        []string // binaries that it loads, such as that of an object store
	Credentials    string   // a file of them for AWS; "": none
	Args           []string // come after the defaults
	// Addresses, if set, are all that it reaches (host:port, on loopback): it has a network of its own then. One that has
	// not listens on port 8080 of this machine, whatever its flags say.
	Addresses []string
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
	for _, plugin := range options.Plugins {
		if err := os.Symlink(plugin, filepath.Join(plugins, filepath.Base(plugin))); err != nil {
			return nil, fmt.Errorf("install plugin of Velero's server: %w", err)
		}
	}
	s := &VeleroServer{log: filepath.Join(options.Dir, "velero-server.log")}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, fmt.Errorf("make log of Velero's server: %w", err)
	}
	defer log.Close()
	args := []string{
		"server", "--kubeconfig", options.Kubeconfig, "--namespace", options.Namespace, "--plugin-dir", plugins,
		"--metrics-address", "127.0.0.1:0", "--profiler-address", "127.0.0.1:0",
	}
	if !options.AllControllers {
		args = append(args, "--disable-controllers", strings.Join(IdleControllers(), ","))
	}
	command := exec.Command(options.Velero, append(args, options.Args...)...)
	command.Env = append(os.Environ(), "VELERO_NAMESPACE="+options.Namespace, "VELERO_SCRATCH_DIR="+scratch, "HOME="+scratch)
	if options.Credentials != "" {
		command.Env = append(command.Env, "AWS_SHARED_CREDENTIALS_FILE="+options.Credentials)
	}
	command.Stdout, command.Stderr = log, log
	run := process.Start
	if options.Addresses != nil {
		run = func(command *exec.Cmd) (*process.Process, error) {
			return process.StartApart(command, options.Addresses...)
		}
	}
	if s.process, err = run(command); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, s.Stop)
	return s, nil
}

// IdleControllers are those of Velero's server that have nothing to do with repositories.
func IdleControllers() []string {
	return []string{
		"backup-queue", "backup", "backup-operations", "backup-deletion", "backup-finalizer", "backup-sync", "download-request",
		"gc", "restore", "restore-operations", "schedule", "server-status-request", "restore-finalizer",
	}
}

// Log is the file that it writes to.
func (s *VeleroServer) Log() string { return s.log }

// Ended is closed when the process is gone.
func (s *VeleroServer) Ended() <-chan struct{} { return s.process.Ended() }

// Stop ends the process, with the plugins that it has started, and returns when it is gone.
func (s *VeleroServer) Stop() { _ = s.process.Kill() } // one that cannot be killed is gone
