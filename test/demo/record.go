package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/lateen-project/lateen/test/asciicast"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/process"
)

// recording runs `lateen status --watch` until its result is called, which writes what it showed into a file. Without a name it does
// nothing.
func recording(ctx context.Context, s *stage, file string) (end func() error, err error) {
	if file == "" {
		return func() error { return nil }, nil
	}
	binary, err := cluster.FindBinary("lateen")
	if err != nil {
		return nil, err
	}
	kubeconfig, err := s.Kubeconfig(ctx, "velero")
	if err != nil {
		return nil, err
	}
	status := exec.Command(binary, "status", "--watch", "--namespace="+s.Namespace, "--kubeconfig="+kubeconfig)
	shown, failure := asciicast.NewRecorder("lateen status --watch during make demo-real", "Velero in namespace "), &strings.Builder{}
	status.Stdout, status.Stderr = shown, failure
	running, err := process.Start(status)
	if err != nil {
		return nil, err
	}
	s.AtEnd(running.Kill)
	return func() error {
		if err := running.Signal(syscall.SIGINT); err != nil {
			return fmt.Errorf("stop lateen status --watch: %w", err)
		}
		<-running.Ended()
		if running.Err().Error() != "exit status 0" {
			return fmt.Errorf("run lateen status --watch: %w: %s", running.Err(), failure)
		}
		text, err := shown.File()
		if err != nil {
			return err
		}
		return os.WriteFile(file, text, 0o644)
	}, nil
}
