package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"k8s.io/client-go/rest"
)

// Gate is a way to a server, such as the API server, that can be shut: who goes through it sees a server that is down,
// while everyone else goes on. It forwards bytes and looks at none.
type Gate struct {
	network, target string // what the server listens on
	port            *heldPort

	mu          sync.Mutex
	listener    net.Listener // nil while shut
	connections map[net.Conn]struct{}
	forwarding  sync.WaitGroup
}

// Gate opens a new gate to the API server. Stop it when done.
func (c *Cluster) Gate(ctx context.Context) (*Gate, error) { return NewGate(ctx, "tcp4", c.address) }

// NewGate opens a gate on loopback to a server that listens on that network and address. Stop it when done.
func NewGate(ctx context.Context, network, target string) (*Gate, error) {
	port, err := holdPort()
	if err != nil {
		return nil, fmt.Errorf("hold a port: %w", err)
	}
	g := &Gate{network: network, target: target, port: port, connections: map[net.Conn]struct{}{}}
	if err := g.Open(ctx); err != nil {
		return nil, errors.Join(err, port.release())
	}
	return g, nil
}

// Address is the host and port that the gate listens on.
func (g *Gate) Address() string { return g.port.address }

// Config is config, but through this gate.
func (g *Gate) Config(config *rest.Config) *rest.Config {
	through := rest.CopyConfig(config)
	through.Host = "https://" + g.port.address
	return through
}

// Open lets connections in again. Opening an open gate changes nothing.
func (g *Gate) Open(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		return nil
	}
	listener, err := g.port.listen(ctx)
	if err != nil {
		return fmt.Errorf("open gate: %w", err)
	}
	g.listener = listener
	g.forwarding.Go(func() { g.accept(listener) })
	return nil
}

// Close cuts every connection and refuses new ones, until Open. Closing a closed gate changes nothing.
func (g *Gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener == nil {
		return nil
	}
	errs := []error{g.listener.Close()}
	g.listener = nil
	for connection := range g.connections {
		errs = append(errs, cut(connection))
	}
	clear(g.connections)
	return errors.Join(errs...)
}

// Stop closes the gate for good and waits until nothing of it runs.
func (g *Gate) Stop() error {
	err := g.Close()
	g.forwarding.Wait()
	return errors.Join(err, g.port.release())
}

// accept forwards every connection of listener until that is closed.
func (g *Gate) accept(listener net.Listener) {
	for {
		inside, err := listener.Accept()
		if err != nil {
			return
		}
		outside, err := net.Dial(g.network, g.target)
		if err != nil {
			_ = inside.Close()
			continue
		}
		if !g.keep(listener, inside, outside) {
			_, _ = inside.Close(), outside.Close()
			return
		}
		g.forwarding.Go(func() { g.copy(inside, outside) })
		g.forwarding.Go(func() { g.copy(outside, inside) })
	}
}

// keep remembers the connections so that Close can cut them, unless the gate was closed meanwhile.
func (g *Gate) keep(listener net.Listener, connections ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != listener {
		return false
	}
	for _, connection := range connections {
		g.connections[connection] = struct{}{}
	}
	return true
}

// copy forwards one direction; when it ends, both ends are closed, which ends the other direction.
func (g *Gate) copy(to, from net.Conn) {
	io.Copy(to, from) //nolint:errcheck // The end of a connection is no error of ours.
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, connection := range []net.Conn{to, from} {
		delete(g.connections, connection)
		_ = connection.Close()
	}
}

// cut closes a connection so that the other side gets a reset, as from a machine that went away.
func cut(connection net.Conn) error {
	if tcp, ok := connection.(*net.TCPConn); ok {
		if err := tcp.SetLinger(0); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
	if err := connection.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
