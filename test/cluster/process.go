package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// logTailLines is the number of log lines in an error.
const logTailLines = 20

// process is one running program of the control plane.
type process struct {
	name  string
	log   string
	pid   int
	ended chan struct{} // closed after the process was waited for
	err   error         // result of Wait; valid after ended is closed
}

// startProcess starts a program that writes its log to dir and that dies with this process.
//
// The kernel sends the parent-death signal when the forking thread ends, not when the process ends. Therefore, one
// goroutine keeps its thread from the fork until Wait returns.
func startProcess(path string, args []string, dir string) (*process, error) {
	name := filepath.Base(path)
	p := &process{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	command := exec.Command(path, args...)
	command.Dir, command.Stdout, command.Stderr = dir, log, log
	command.Env = []string{"HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH")}
	// With its own process group, the program gets no interrupt from the terminal. The caller stops the processes in
	// order.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := command.Start()
		started <- err
		if err == nil {
			p.err = command.Wait()
		}
		p.err = errors.Join(p.err, log.Close())
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	p.pid = command.Process.Pid
	return p, nil
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// why returns an error with the state in which the process ended by itself.
func (p *process) why() error {
	<-p.ended
	state := "exit status 0"
	if p.err != nil {
		state = p.err.Error()
	}
	return fmt.Errorf("%s ended by itself (%s); it says:\n%s", p.name, state, logTail(p.log))
}

// stop kills the process, because its state is discarded anyway, and waits for it.
func (p *process) stop() error {
	if p.hasEnded() {
		return nil // the pid may belong to another process now
	}
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.ended
	return nil
}

func logTail(path string) string {
	log, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-logTailLines):], "\n")
}
