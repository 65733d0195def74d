package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
)

// Addresses of the nodes' networks, which no other process can reach. The worker is behind a link of its own.
const (
	nodeName      = "node"
	nodeAddress   = "10.10.0.1"
	podRange      = "10.244.0.0/24"
	s3Address     = nodeAddress + ":9000"
	workerName    = "worker"
	workerGateway = "10.10.1.1"
	workerAddress = "10.10.1.2"
	workerPods    = "10.244.1.0/24"
	workerLink    = "worker0" // on the node's side
)

// setUpNetwork gives the node its address.
func setUpNetwork(ctx context.Context) error {
	return errors.Join(ip(ctx,
		"link set lo up", "link add node0 type veth peer name node1", "address add "+nodeAddress+"/24 dev node0",
		"link set node0 up", "link set node1 up", "route add default via 10.10.0.254 dev node0",
	), forwardPackets())
}

// setUpWorkerNetwork gives the worker its address. Its end of the link is there already.
func setUpWorkerNetwork(ctx context.Context) error {
	return errors.Join(ip(ctx,
		"link set lo up", "address add "+workerAddress+"/24 dev eth0", "link set eth0 up", "route add default via "+workerGateway,
	), forwardPackets())
}

// linkWorker connects the network namespace of a process with the node.
func linkWorker(ctx context.Context, pid int) error {
	return ip(ctx,
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", workerLink, pid), "address add "+workerGateway+"/24 dev "+workerLink,
		"link set "+workerLink+" up", "route add "+workerPods+" via "+workerAddress,
	)
}

func ip(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		if output, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, output)
		}
	}
	return nil
}

// forwardPackets lets the kernel forward between pods and nodes.
func forwardPackets() error {
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
