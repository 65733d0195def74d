// Package process runs programs that do not outlive this one.
package process

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
)

// Process is a program that was started.
type Process struct {
	command *exec.Cmd
	ended   chan struct{}
	err     error
}

// Start starts a command in a process group of its own. The kernel kills it when this process ends, however that ends.
func Start(command *exec.Cmd) (*Process, error) {
	return start(command, func() (func(), error) { return func() {}, nil })
}

// start calls prepare on the thread that starts the command, and what prepare returns when the command has ended.
func start(command *exec.Cmd, prepare func() (func(), error)) (*Process, error) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{command: command, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel watches the thread that forks, not its process: the thread must live as long as the command.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		cleanUp, err := prepare()
		if err == nil {
			defer cleanUp()
			err = command.Start()
		}
		started <- err
		if err == nil {
			p.err = cmp.Or(command.Wait(), errors.New("exit status 0"))
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Path, err)
	}
	return p, nil
}

// Ended is closed when the process is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Err says how the process ended, by which signal or exit status. It may be called once Ended is closed.
func (p *Process) Err() error { return p.err }

// Signal sends a signal to the process and its group, such as SIGSTOP. One that has ended gets none.
func (p *Process) Signal(signal syscall.Signal) error {
	select {
	case <-p.ended:
		return nil // its number may be another's by now
	default:
	}
	if err := syscall.Kill(-p.command.Process.Pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to %s: %w", signal, p.command.Path, err)
	}
	return nil
}

// Kill kills the process with its group, and returns when it is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.ended
	return nil
}
