package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	output, terminal := io.Pipe()
	failure := &strings.Builder{}
	status := exec.Command(binary, "status", "--watch", "--namespace="+s.Namespace, "--kubeconfig="+kubeconfig)
	status.Stdout, status.Stderr = terminal, failure
	running, err := process.Start(status)
	if err != nil {
		return nil, err
	}
	s.AtEnd(running.Kill)
	recorded := make(chan error, 1)
	go func() { recorded <- record(output, file) }()
	return func() error {
		if err := running.Signal(syscall.SIGINT); err != nil {
			return fmt.Errorf("stop lateen status --watch: %w", err)
		}
		<-running.Ended()
		if running.Err().Error() != "exit status 0" {
			return fmt.Errorf("run lateen status --watch: %w: %s", running.Err(), failure)
		}
		return errors.Join(terminal.Close(), <-recorded)
	}, nil
}

// record writes what is shown into a file, once all of it was read.
func record(output *io.PipeReader, file string) error {
	shown, err := asciicast.Record(output, "lateen status --watch during make demo-real", "Velero in ")
	if err != nil {
		return output.CloseWithError(err) // or the program could not go on
	}
	text, err := shown.Encode()
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}
