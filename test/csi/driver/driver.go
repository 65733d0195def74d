// Package driver is a CSI driver for tests. Volumes and snapshots are directories, and block volumes are loop devices of
// files. Command csi-driver serves it to a kubelet; package csi of the tests calls it where the sidecars and the nodes are
// simulated.
package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// DefaultName is the name of the driver in the real cluster.
const DefaultName = "csi.lateen.test"

// Options configure a driver. Only Dir is required.
type Options struct {
	// Name is what StorageClasses and VolumeSnapshotClasses name; "" selects DefaultName.
	Name string
	// Dir is the directory of volumes and snapshots. It outlives the driver.
	Dir string
	// Node is the name of the node, for the node service.
	Node string
	// ReadyDelay is the time from the creation of a snapshot until it is ready to use.
	ReadyDelay time.Duration
	// DataLess creates empty snapshots, and empty volumes from them.
	DataLess bool
	// Fault, if set, decides about each call before it is served. It may block until ctx is done.
	Fault Fault
}

// Fault returns the error of a call, ErrLost, or nil to serve it. Many goroutines call it.
type Fault func(ctx context.Context, call Call) error

// ErrLost has CreateSnapshot succeed, and the driver forget the snapshot.
var ErrLost = errors.New("the driver loses the snapshot")

// Call is one call of the driver.
type Call struct {
	Verb Verb
	// Object is the object of the call: NAMESPACE/NAME of a claim, or the name of a PersistentVolume or
	// VolumeSnapshotContent; "" if the caller is a real sidecar.
	Object string
}

// Verb is an operation of a CSI driver, by its name in CSI.
type Verb string

// Driver serves identity, controller and node. Many goroutines may call its methods.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	options Options
	store   *store
}

// New returns a driver with the volumes and snapshots of its directory. It starts nothing.
func New(options Options) (*Driver, error) {
	if options.Dir == "" {
		return nil, errors.New("no directory is given: set Options.Dir")
	}
	options.Name = cmp.Or(options.Name, DefaultName)
	store, err := newStore(options.Dir, options.DataLess)
	if err != nil {
		return nil, fmt.Errorf("prepare directory of driver %s: %w", options.Name, err)
	}
	return &Driver{options: options, store: store}, nil
}

// Register adds the driver's services to a server made with Intercept.
func (d *Driver) Register(server *grpc.Server) {
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
}

// Intercept is a grpc.UnaryServerInterceptor that plays the fault of a call.
func (d *Driver) Intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	answer, err := Serve(ctx, d, Call{Verb: Verb(path.Base(info.FullMethod))}, handle, request)
	return answer, statusOf(err)
}

// Serve plays the fault of a call, or serves its request.
func Serve[Request, Answer any](
	ctx context.Context, d *Driver, call Call, serve func(context.Context, Request) (Answer, error), request Request,
) (Answer, error) {
	var none Answer
	fault := error(nil)
	if d.options.Fault != nil {
		fault = d.options.Fault(ctx, call)
	}
	lost := errors.Is(fault, ErrLost)
	if fault != nil && !lost {
		return none, fault
	}
	answer, err := serve(ctx, request)
	if created, isSnapshot := any(answer).(*csi.CreateSnapshotResponse); err == nil && isSnapshot && lost {
		err = d.forgetSnapshot(created.Snapshot.SnapshotId)
	}
	return answer, err
}

// VolumeDir returns the directory of a volume, or the file of a block volume.
func (d *Driver) VolumeDir(handle string) string { return d.store.data(volumes, handle) }

// Volumes returns the handles of all volumes, sorted.
func (d *Driver) Volumes() ([]string, error) { return d.store.ids(volumes) }

// Snapshots returns the handles of all snapshots, sorted.
func (d *Driver) Snapshots() ([]string, error) { return d.store.ids(snapshots) }

func (d *Driver) forgetSnapshot(handle string) error {
	d.store.lock.Lock()
	defer d.store.lock.Unlock()
	return d.store.remove(snapshots, handle)
}
