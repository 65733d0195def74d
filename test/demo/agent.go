package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// readyInterval is how often /readyz is asked while the agent starts; nothing tells by itself.
const readyInterval = 20 * time.Millisecond

// program is how to run the agent: everything but its metrics address.
type program struct {
	binary string
	args   []string
	env    []string
	log    string // the file that its log is appended to
}

// agent is one run of the program.
type agent struct {
	url   string // where it serves its metrics
	pid   int
	ended chan struct{} // closed once the process was waited for
	err   error         // what Wait returned; may be read once ended is closed
}

// start runs the program and returns once it says that it is ready. The process dies with the demo, however
// that ends: the kernel watches the thread that forked, which is therefore kept.
func (p program) start(ctx context.Context) (*agent, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command := exec.Command(p.binary, append(p.args, "--metrics-address="+address)...)
	command.Env, command.Stdout, command.Stderr = p.env, log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	a := &agent{url: "http://" + address, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(a.ended)
		err := command.Start()
		started <- err
		if err == nil {
			a.err = command.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.binary, err)
	}
	a.pid = command.Process.Pid
	if err := a.untilReady(ctx); err != nil {
		return nil, errors.Join(err, a.end(ctx, syscall.SIGKILL))
	}
	return a, nil
}

// untilReady waits for /readyz, which says that the agent has seen all there was when it started.
func (a *agent) untilReady(ctx context.Context) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for {
		_, err := get(ctx, a.url+"/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the agent's /readyz: %w (last answer: %w)", ctx.Err(), err)
		case <-a.ended:
			return fmt.Errorf("the agent ended by itself: %s", a.exit())
		case <-tick.C:
		}
	}
}

// exit says how the process ended; only once ended is closed.
func (a *agent) exit() string {
	if a.err != nil {
		return a.err.Error()
	}
	return "exit status 0"
}

// end sends the signal and waits for the process to go. The exit code is left in a.err.
func (a *agent) end(ctx context.Context, signal syscall.Signal) error {
	select {
	case <-a.ended:
		return nil // Its number may be another's by now.
	default:
	}
	if err := syscall.Kill(a.pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal the agent: %w", err)
	}
	select {
	case <-a.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the agent to end after %s: %w", signal, ctx.Err())
	}
}

// tail is the end of what all runs logged, without the logs of movers that are between two marked lines.
func (p program) tail() []string {
	const lines = 15
	log, err := os.ReadFile(p.log)
	if err != nil {
		return []string{err.Error()}
	}
	var own []string
	mover := false
	for line := range strings.Lines(string(log)) {
		mover = mover && !strings.Contains(line, "End of mover log")
		if !mover {
			own = append(own, strings.TrimSuffix(line, "\n"))
		}
		mover = mover || strings.Contains(line, "Begin of mover log")
	}
	return own[max(0, len(own)-lines):]
}

// freeAddress is a loopback address that nobody listens on now.
func freeAddress(ctx context.Context) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
