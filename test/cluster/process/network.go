package process

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// StartApart is Start in a new network namespace, where a program may listen on ports that others use. Of this
// machine's servers, only those at the addresses (host:port, on loopback) are reachable. The error names the step
// that failed.
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
		go func() {
			for {
				inside, err := door.Accept()
				if err != nil {
					return
				}
				go Forward(inside, "tcp4", address)
			}
		}()
	}
	return shut, nil
}

// Forward connects a connection to a server on that network and address, and copies both directions until one of them ends.
func Forward(inside net.Conn, network, address string) {
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
