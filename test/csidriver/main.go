// Command csi-driver is the CSI driver of package driver in one process, which registers itself with the kubelet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/lateen-project/lateen/test/csi/driver"
)

// faultsFile is the file of faults, in the directory of the data.
const faultsFile = "faults.json"

func main() {
	data := flag.String("data", "/csi-data", "directory of volumes and snapshots, which outlives the driver")
	socket := flag.String("socket", "/csi/csi.sock", "socket of the driver")
	kubelet := flag.String("kubelet-socket", "", "where the kubelet sees that socket; empty is at the same path")
	plugins := flag.String("registration", "", "the kubelet's directory of registration sockets; empty registers nowhere")
	node := flag.String("node", os.Getenv("NODE_NAME"), "name of the node")
	flag.Parse()
	if *kubelet == "" {
		*kubelet = *socket
	}
	if err := run(*data, *socket, *kubelet, *plugins, *node); err != nil {
		fmt.Fprintln(os.Stderr, "csi-driver:", err)
		os.Exit(1)
	}
}

// run serves the driver at socket until a signal comes, and says in the directory plugins, if there is one, that the kubelet
// finds it at endpoint.
func run(data, socket, endpoint, plugins, node string) error {
	stop, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer release()
	storage, err := driver.New(driver.Options{Dir: data, Node: node, Fault: driver.FaultsIn(filepath.Join(data, faultsFile))})
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(storage.Intercept))
	storage.Register(server)
	servers := map[string]*grpc.Server{socket: server}
	if plugins != "" {
		registrar := grpc.NewServer()
		registration.RegisterRegistrationServer(registrar, announcement{endpoint: endpoint})
		servers[filepath.Join(plugins, driver.DefaultName+"-reg.sock")] = registrar
	}
	return serve(stop, servers)
}

// serve serves each server at its socket until one fails or ctx ends.
func serve(ctx context.Context, servers map[string]*grpc.Server) error {
	failed := make(chan error, len(servers))
	for path, server := range servers {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the socket of a former run: %w", err)
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
		if err != nil {
			return fmt.Errorf("listen at %s: %w", path, err)
		}
		defer server.GracefulStop()
		go func() { failed <- server.Serve(listener) }()
	}
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
		return nil
	}
}

// announcement tells the kubelet which driver there is.
type announcement struct {
	registration.UnimplementedRegistrationServer
	endpoint string
}

func (a announcement) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: driver.DefaultName, Endpoint: a.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (a announcement) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		fmt.Fprintln(os.Stderr, "csi-driver: the kubelet refused the registration:", status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}
