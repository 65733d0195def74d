package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/test/cluster/process"
)

// Gate is a forwarder to a server, such as the API server, that tests can close. Its clients then observe a server
// that is down, while all other clients continue. It forwards bytes without inspection.
type Gate struct {
	network, target string // the address of the server
	port            *heldPort

	mu          sync.Mutex
	listener    net.Listener // nil while closed
	connections map[net.Conn]struct{}
	forwarding  sync.WaitGroup
}

// NewGate opens a gate on loopback to a server on that network and address. The caller must call Stop. An error means
// that no port is available.
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

// Address returns the listening address of the gate as host:port.
func (g *Gate) Address() string { return g.port.address }

// Config returns a copy of config that connects through this gate.
func (g *Gate) Config(config *rest.Config) *rest.Config {
	through := rest.CopyConfig(config)
	scheme, _, _ := strings.Cut(config.Host, "://")
	through.Host = scheme + "://" + g.port.address
	return through
}

// Open accepts connections again. It does nothing on an open gate.
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

// Close resets every connection and rejects new ones until Open. It does nothing on a closed gate.
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

// Stop closes the gate permanently and waits for its goroutines.
func (g *Gate) Stop() error {
	err := g.Close()
	g.forwarding.Wait()
	return errors.Join(err, g.port.release())
}

// accept forwards every connection of listener until the listener closes.
func (g *Gate) accept(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		if !g.keep(listener, connection) {
			_ = connection.Close()
			return
		}
		g.forwarding.Go(func() {
			process.Forward(connection, g.network, g.target)
			g.mu.Lock()
			defer g.mu.Unlock()
			delete(g.connections, connection)
		})
	}
}

// keep registers a connection for Close. It returns false if the gate was closed in the meantime.
func (g *Gate) keep(listener net.Listener, connection net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != listener {
		return false
	}
	g.connections[connection] = struct{}{}
	return true
}

// cut closes a connection with a reset, as from a machine that lost power.
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
