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

// Process is a started program.
type Process struct {
	command *exec.Cmd
	ended   chan struct{}
	err     error
}

// Start starts a command in its own process group. The kernel kills it when this process ends for any reason. The
// error means that the command did not start.
func Start(command *exec.Cmd) (*Process, error) {
	return start(command, func() (func(), error) { return func() {}, nil })
}

// start calls prepare on the thread that starts the command. It calls the function that prepare returns after the
// command has ended.
func start(command *exec.Cmd, prepare func() (func(), error)) (*Process, error) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{command: command, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel watches the forking thread, not its process, so the thread must live as long as the command.
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

// Ended returns a channel that closes when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// PID returns the process id.
func (p *Process) PID() int { return p.command.Process.Pid }

// Err returns the signal or the exit status of the process. It is valid after Ended is closed.
func (p *Process) Err() error { return p.err }

// Signal sends a signal, such as SIGSTOP, to the process group. It does nothing for a process that has ended.
func (p *Process) Signal(signal syscall.Signal) error {
	select {
	case <-p.ended:
		return nil // the pid may belong to another process now
	default:
	}
	if err := syscall.Kill(-p.command.Process.Pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to %s: %w", signal, p.command.Path, err)
	}
	return nil
}

// Kill kills the process group and waits for the end of the process.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.ended
	return nil
}
