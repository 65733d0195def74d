// Package driver is a CSI driver for tests. Volumes and snapshots are directories, and block volumes are loop devices of files.
// Command csi-driver serves it to a kubelet; package csi of the tests calls it where the sidecars and the nodes are simulated.
package driver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
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
	for _, kind := range []string{volumes, snapshots, nodes} {
		if err := os.MkdirAll(filepath.Join(options.Dir, kind), 0o755); err != nil {
			return nil, fmt.Errorf("prepare directory of driver %s: %w", options.Name, err)
		}
	}
	return &Driver{options: options, store: &store{dir: options.Dir, dataLess: options.DataLess}}, nil
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
func Serve[Request, Answer any](ctx context.Context, d *Driver, call Call, serve func(context.Context, Request) (Answer, error), request Request) (Answer, error) {
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
		d.store.lock.Lock()
		defer d.store.lock.Unlock()
		err = d.store.remove(snapshots, created.Snapshot.SnapshotId)
	}
	return answer, err
}

// VolumeDir returns the directory of a volume, or the file of a block volume.
func (d *Driver) VolumeDir(handle string) string { return d.store.data(volumes, handle) }

// Volumes returns the handles of all volumes, sorted.
func (d *Driver) Volumes() ([]string, error) { return d.store.ids(volumes) }

// Snapshots returns the handles of all snapshots, sorted.
func (d *Driver) Snapshots() ([]string, error) { return d.store.ids(snapshots) }

// fault is the fault of a call in a file. The zero fault is none.
type fault struct {
	Delay string `json:"delay"` // time before anything else, as in "1m30s"
	Error string `json:"error"` // it fails with this message
	Lost  bool   `json:"lost"`  // of CreateSnapshot: it succeeds, and the snapshot does not exist any more
}

// FaultsIn returns the faults of a file by the names of calls. The file is read at each call, so that faults begin and end
// while the driver runs. Without the file, there is no fault.
//
//	{"CreateSnapshot": {"lost": true}, "NodePublishVolume": {"delay": "10s"}, "CreateVolume": {"error": "the array is full"}}
func FaultsIn(file string) Fault {
	return func(ctx context.Context, call Call) error {
		content, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		var all map[Verb]fault
		if err := json.Unmarshal(content, &all); err != nil {
			return fmt.Errorf("read the faults: %w", err)
		}
		return all[call.Verb].play(ctx)
	}
}

func (f fault) play(ctx context.Context) error {
	if f.Delay != "" {
		delay, err := time.ParseDuration(f.Delay)
		if err != nil {
			return err
		}
		if err := pause(ctx, delay); err != nil {
			return err
		}
	}
	switch {
	case f.Error != "":
		return errors.New(f.Error)
	case f.Lost:
		return ErrLost
	default:
		return nil
	}
}

func pause(ctx context.Context, takes time.Duration) error {
	timer := time.NewTimer(takes)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// GetPluginInfo implements csi.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.options.Name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *Driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	answer := &csi.GetPluginCapabilitiesResponse{}
	for _, each := range []csi.PluginCapability_Service_Type{
		csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: each}},
		})
	}
	return answer, nil
}

// Probe implements csi.IdentityServer.
func (d *Driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// loopMajor is the major number of loop devices.
const loopMajor = 7

// isMounted says whether path is a mount point.
func isMounted(path string) (bool, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == path {
			return true, nil
		}
	}
	return false, nil
}

// deviceAt is the loop device that is bound at path, or "" where none is.
func deviceAt(path string) (string, error) {
	var info unix.Stat_t
	if err := unix.Stat(path, &info); err != nil {
		return "", fmt.Errorf("stat %s: %w", path, err)
	}
	if info.Mode&unix.S_IFMT != unix.S_IFBLK || unix.Major(info.Rdev) != loopMajor {
		return "", nil
	}
	return fmt.Sprintf("/dev/loop%d", unix.Minor(info.Rdev)), nil
}

// attach makes a file a loop device and returns its path. Another process may take the device that is free.
func attach(path string) (string, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer control.Close()
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("find a free loop device: %w", err)
		}
		device := fmt.Sprintf("/dev/loop%d", number)
		err = configure(device, int(file.Fd()))
		if err == nil || !errors.Is(err, unix.EBUSY) {
			return device, err
		}
	}
}

func configure(device string, file int) error {
	opened, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer opened.Close()
	return unix.IoctlLoopConfigure(int(opened.Fd()), &unix.LoopConfig{Fd: uint32(file)})
}

func detach(device string) error {
	opened, err := os.OpenFile(device, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer opened.Close()
	return unix.IoctlSetInt(int(opened.Fd()), unix.LOOP_CLR_FD, 0)
}
