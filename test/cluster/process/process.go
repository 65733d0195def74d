// Package process runs programs that do not outlive this one.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
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

// start calls prepare on the thread that starts the command. It calls the function that prepare returns after the command has ended.
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

// StartApart is Start in a new network namespace, where a program may listen on ports that others use. Of this machine's servers,
// only those at the addresses (host:port, on loopback) are reachable. The error names the step that failed.
func StartApart(command *exec.Cmd, addresses ...string) (*Process, error) {
	return start(command, func() (func(), error) {
		// The thread stays in the new namespace. It stays locked, so that it ends with its goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return nil, fmt.Errorf("create network namespace: %w", err)
		}
		if err := loopbackUp(); err != nil {
			return nil, err
		}
		return openDoors(addresses)
	})
}

// Dial connects to an address in the network namespace of a program that runs. The thread returns from there: if it
// ended, the kernel would kill the programs that it has started.
func (p *Process) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	defer own.Close()
	theirs, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", p.command.Process.Pid))
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	defer theirs.Close()
	runtime.LockOSThread()
	if err := unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("enter network namespace: %w", err)
	}
	connection, err := new(net.Dialer).DialContext(ctx, network, address)
	if left := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); left != nil {
		return nil, fmt.Errorf("leave network namespace: %w", left) // with the thread locked, which nothing uses any more
	}
	runtime.UnlockOSThread()
	return connection, err
}

func loopbackUp() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("create socket: %w", err)
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("name loopback: %w", err)
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	return nil
}

// openDoors listens on the addresses in the namespace of the calling thread, and forwards each connection to the same
// address in this one. The returned function closes the listeners.
func openDoors(addresses []string) (func(), error) {
	var doors []net.Listener
	shut := func() {
		for _, door := range doors {
			_ = door.Close()
		}
	}
	for _, address := range addresses {
		door, err := net.Listen("tcp4", address)
		if err != nil {
			shut()
			return nil, fmt.Errorf("listen in network namespace: %w", err)
		}
		doors = append(doors, door)
		go Relay(door, "tcp4", address)
	}
	return shut, nil
}

// Relay forwards the connections of a listener to a server on that network and address, until the listener is closed.
func Relay(listener net.Listener, network, address string) {
	for {
		inside, err := listener.Accept()
		if err != nil {
			return
		}
		go forward(inside, network, address)
	}
}

// forward connects a connection to a server, and copies both directions until one of them ends.
func forward(inside net.Conn, network, address string) {
	defer inside.Close()
	outside, err := net.Dial(network, address)
	if err != nil {
		return // the client observes the end of its connection
	}
	defer outside.Close()
	done := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // the end of a connection is no error
		done <- struct{}{}
	}
	go pass(inside, outside)
	go pass(outside, inside)
	<-done
}
