package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/lateen-project/lateen/test/cluster/process"
)

// VeleroServer is a running process of the real Velero server.
type VeleroServer struct {
	process *process.Process
	log     string
}

// ServerOptions configure a Velero server.
type ServerOptions struct {
	Velero     string // the binary
	Kubeconfig string // with the permissions of Velero
	Namespace  string
	Dir        string // for its scratch files and log

	AllControllers bool     // false: only those of repositories, which only the server can initialize
	Plugins        []string // binaries it loads, such as that of an object store
	Credentials    string   // an AWS credentials file; "": none
	Args           []string // appended to the defaults
	// Addresses are the only ones it reaches (host:port, on loopback). It has a network namespace of its own, because it
	// listens on port 8080, whatever its flags are.
	Addresses []string
}

// StartVeleroServer starts the server. Repositories become Ready within about 20 s after their creation. The server
// ends with the context or by Stop, and never outlives this process.
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
	if s.process, err = process.StartApart(command, options.Addresses...); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, s.Stop)
	return s, nil
}

// IdleControllers are the controllers of Velero's server that do not handle repositories.
func IdleControllers() []string {
	return []string{
		"backup-queue", "backup", "backup-operations", "backup-deletion", "backup-finalizer", "backup-sync", "download-request",
		"gc", "restore", "restore-operations", "schedule", "server-status-request", "restore-finalizer",
	}
}

// Log returns the path of the log file.
func (v *VeleroServer) Log() string { return v.log }

// Stop ends the process with its plugins and waits for their end.
func (v *VeleroServer) Stop() { _ = v.process.Kill() } // an error means that it has already ended
