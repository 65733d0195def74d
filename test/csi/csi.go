// Package csi plays the sidecars of a CSI driver: csi-provisioner by the library that it is made with, and csi-snapshotter. They
// call the same driver as the real sidecars of the cluster with a real kubelet. Volumes are directories, and snapshots are copies of
// directories. It never mounts anything and does not depend on Lateen.
package csi

import (
	"context"
	"fmt"
	"sync"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/lateen-project/lateen/test/csi/driver"
)

// DefaultDriver is the default name of a driver.
const DefaultDriver = "csi.example.com"

// workers is the number of concurrent workers for volumes, and for snapshots.
const workers = 16

// Options configure a driver. Only Dir is required.
type Options struct {
	// Driver is its name, which classes refer to; "" selects DefaultDriver.
	Driver string
	// Dir is an empty directory for volumes and snapshots.
	Dir string
	// ReadyDelay is the time from the creation of a snapshot until it is ready to use.
	ReadyDelay time.Duration
	// DataLess creates empty snapshots, and empty volumes from them, for load tests.
	DataLess bool
	// Fault, if set, decides about each call of the driver.
	Fault driver.Fault
}

// Verb is an operation of a CSI driver.
type Verb = driver.Verb

// Call is one call of a CSI driver.
type Call = driver.Call

// The calls that tests fail.
const (
	CreateVolume   = driver.CreateVolume
	CreateSnapshot = driver.CreateSnapshot
	DeleteSnapshot = driver.DeleteSnapshot
)

// Driver is a running driver with its provisioner and its snapshotter. Many goroutines may call its methods.
type Driver struct {
	options   Options
	driver    *driver.Driver
	kube      kubernetes.Interface
	snapshots snapshotclient.Interface
	stop      func()

	lock      sync.Mutex
	deletions map[string]int // by handle
}

// Start starts a driver. It ends by Stop, not with the context. An error names the step that failed.
func Start(ctx context.Context, config *rest.Config, options Options) (*Driver, error) {
	if options.Driver == "" {
		options.Driver = DefaultDriver
	}
	d := &Driver{options: options, deletions: map[string]int{}}
	var err error
	d.driver, err = driver.New(driver.Options{
		Name: options.Driver, Dir: options.Dir, ReadyDelay: options.ReadyDelay, DataLess: options.DataLess, Fault: options.Fault,
	})
	if err != nil {
		return nil, err
	}
	if d.kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	if d.snapshots, err = snapshotclient.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make client of snapshots: %w", err)
	}
	snapshotter, err := newSnapshotter(d)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var working sync.WaitGroup
	provisioning := controller.NewProvisionController(ctx, d.kube, options.Driver, provisioner{d},
		controller.LeaderElection(false), controller.AddFinalizer(true), controller.Threadiness(workers),
		controller.FailedProvisionThreshold(0), controller.FailedDeleteThreshold(0),
		controller.RateLimiter(retries()), controller.CreateProvisionedPVLimiter(retries()),
	)
	provisioning.ControllerWaitGroup(&working)
	working.Go(func() { provisioning.Run(ctx) })
	working.Go(func() { snapshotter.run(ctx) })
	d.stop = func() {
		cancel()
		working.Wait()
	}
	return d, nil
}

// retries has a delay double with each failure, between bounds that suit tests.
func retries() workqueue.TypedRateLimiter[string] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 2*time.Second)
}

// Stop ends the driver. Its volumes and snapshots stay.
func (d *Driver) Stop() { d.stop() }

// Name returns the name of the driver, the provisioner in classes.
func (d *Driver) Name() string { return d.options.Driver }

// Volumes returns the handles of all volumes, sorted.
func (d *Driver) Volumes() []string { return must(d.driver.Volumes()) }

// Handles returns the handles of all snapshots, sorted.
func (d *Driver) Handles() []string { return must(d.driver.Snapshots()) }

// must returns what is in the driver's directory. Only a broken test environment makes it unreadable.
func must(handles []string, err error) []string {
	if err != nil {
		panic(err)
	}
	return handles
}

// Deletions returns how many VolumeSnapshotContents have deleted the snapshot. Only the first deletion has an effect.
func (d *Driver) Deletions(handle string) int {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.deletions[handle]
}

// VolumeDir returns the directory of a volume.
func (d *Driver) VolumeDir(handle string) string { return d.driver.VolumeDir(handle) }
