package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// heldPort is a reserved loopback port: a socket is bound to it and never listens. Listeners on it must set
// SO_REUSEPORT too (kube-apiserver by --permit-port-sharing). The kernel gives the port to no other program, so
// nothing can conflict between the choice of a port and its use.
type heldPort struct {
	address string
	socket  int
}

func holdPort() (*heldPort, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	if err := bindLoopback(socket); err != nil {
		return nil, errors.Join(fmt.Errorf("bind socket: %w", err), unix.Close(socket))
	}
	name, err := unix.Getsockname(socket)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("name socket: %w", err), unix.Close(socket))
	}
	bound, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return nil, errors.Join(fmt.Errorf("name socket: %T is no IPv4 address", name), unix.Close(socket))
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(bound.Port))
	return &heldPort{address: address, socket: socket}, nil
}

func bindLoopback(socket int) error {
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	return unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
}

func (h *heldPort) number() string {
	_, number, _ := net.SplitHostPort(h.address) // holdPort joined it
	return number
}

// listen opens a listener on the reserved port.
func (h *heldPort) listen(ctx context.Context) (net.Listener, error) {
	share := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var set error
		err := raw.Control(func(socket uintptr) {
			set = unix.SetsockoptInt(int(socket), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
		return errors.Join(err, set)
	}}
	return share.Listen(ctx, "tcp4", h.address)
}

func (h *heldPort) release() error { return unix.Close(h.socket) }
