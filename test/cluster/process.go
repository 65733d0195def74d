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

// logTailLines is how much of a log an error carries.
const logTailLines = 20

// process is one running program of the control plane.
type process struct {
	name  string
	log   string
	pid   int
	ended chan struct{} // closed once the process was waited for
	err   error         // what Wait returned; may be read once ended is closed
}

// startProcess starts a program that writes its log to dir and that dies when this process does.
//
// The kernel sends the parent-death signal when the thread that forked ends, not the process. So one
// goroutine keeps its thread from the fork until the child was waited for.
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
	// An own process group: an interrupt from the terminal goes to the caller, who stops things in order.
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

// why says that, and how, the process ended by itself.
func (p *process) why() error {
	<-p.ended
	state := "exit status 0"
	if p.err != nil {
		state = p.err.Error()
	}
	return fmt.Errorf("%s ended by itself (%s); it says:\n%s", p.name, state, logTail(p.log))
}

// stop kills the process, since its state is thrown away anyhow, and waits for it.
func (p *process) stop() error {
	if p.hasEnded() {
		return nil // Its number may be another's by now.
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
