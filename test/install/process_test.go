package install

import (
	"context"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/testenv"
)

// transcript collects what a process prints, and lets a test wait for it.
type transcript struct {
	mutex sync.Mutex
	text  strings.Builder
	grown chan struct{} // closed at the next write
}

func newTranscript() *transcript { return &transcript{grown: make(chan struct{})} }

func (t *transcript) Write(p []byte) (int, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	close(t.grown)
	t.grown = make(chan struct{})
	return t.text.Write(p)
}

// read returns all that was printed, and a channel that is closed when there is more.
func (t *transcript) read() (string, <-chan struct{}) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.text.String(), t.grown
}

// process is a run of lateen that a test accompanies: its input stays open, as a terminal's does.
type process struct {
	*testing.T
	out, warnings *transcript
	interrupt     func()
	ended         chan struct{} // closed when it has ended
	err           error         // then: how
}

// start runs lateen against the cluster of the tests.
func (s *env) start(args ...string) *process {
	ctx, cancel := context.WithTimeout(s.Context(), testenv.Patience) // only guards against hanging
	s.Cleanup(cancel)
	command := program(ctx, s.T, "lateen", append(args, "--namespace="+s.namespace, "--kubeconfig="+s.kubeconfig)...)
	in, terminal, err := os.Pipe() // a file: nothing has to copy from it until it ends
	require.NoError(s, err)
	s.Cleanup(func() { in.Close(); terminal.Close() })
	p := &process{T: s.T, out: newTranscript(), warnings: newTranscript(), ended: make(chan struct{})}
	command.Stdin, command.Stdout, command.Stderr = in, p.out, p.warnings
	require.NoError(s, command.Start())
	p.interrupt = func() { require.NoError(s, command.Process.Signal(syscall.SIGINT)) }
	go func() {
		p.err = command.Wait()
		close(p.ended)
	}()
	return p
}

// prints returns once the process has printed text, and fails if it ends without.
func (p *process) prints(text string) {
	for {
		printed, grown := p.out.read()
		if strings.Contains(printed, text) {
			return
		}
		select {
		case <-grown:
		case <-p.ended:
			printed, _ := p.out.read()
			reported, _ := p.warnings.read()
			require.Contains(p, printed, text, "the process has ended: %v: %s", p.err, reported)
			return
		}
	}
}

// wait returns how the process has ended, and what it printed.
func (p *process) wait() (out, warnings string, err error) {
	<-p.ended
	out, _ = p.out.read()
	warnings, _ = p.warnings.read()
	return out, warnings, p.err
}
