package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
)

// Addresses of the node's network, which nobody else can reach.
const (
	nodeName    = "node"
	nodeAddress = "10.10.0.1"
	podRange    = "10.244.0.0/24"
	s3Address   = nodeAddress + ":9000"
)

// setUpNetwork gives the node its address and forwards between pods.
func setUpNetwork(ctx context.Context) error {
	for _, line := range []string{
		"link set lo up", "link add node0 type veth peer name node1", "address add " + nodeAddress + "/24 dev node0",
		"link set node0 up", "link set node1 up", "route add default via 10.10.0.254 dev node0",
	} {
		if output, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, output)
		}
	}
	for _, name := range []string{"net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"} {
		if err := os.WriteFile("/proc/sys/"+name, []byte("1"), 0o600); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// forward hands connections that the machine makes to the listener on to an address in the node's network.
func forward(ctx context.Context, listener net.Listener, address string) {
	for {
		outer, err := listener.Accept()
		if err != nil {
			return // The listener is closed.
		}
		go func() {
			defer outer.Close()
			inner, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return // The client sees that its connection ends.
			}
			defer inner.Close()
			go func() {
				_, _ = io.Copy(inner, outer) // An error ends the connection, as does the end.
				inner.Close()
			}()
			_, _ = io.Copy(outer, inner)
		}()
	}
}
