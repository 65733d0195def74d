// Package csi plays the sidecars of a CSI driver against a real control plane: provisioner, snapshotter and attacher.
// They call the same driver as the real sidecars of the cluster with a real kubelet. Volumes are directories, and
// snapshots are copies of directories. It never mounts anything and does not depend on Lateen.
package csi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/lateen-project/lateen/test/csi/driver"
)

// DefaultDriver is the default name of a driver.
const DefaultDriver = "csi.example.com"

// workers is the number of concurrent workers for volumes and snapshots.
const workers = 16

// Retries start after firstRetry. The delay doubles with each failure, up to lastRetry.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
)

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
	// Attach requires that volumes are attached by VolumeAttachments before a mount (CSIDriver's attachRequired).
	Attach bool
	// Fault, if set, decides about each call of the driver.
	Fault driver.Fault
}

// Verb is an operation of a CSI driver.
type Verb = driver.Verb

// Call is one call of a CSI driver.
type Call = driver.Call

// The calls that the sidecars make.
const (
	CreateVolume   = driver.CreateVolume
	DeleteVolume   = driver.DeleteVolume
	CreateSnapshot = driver.CreateSnapshot
	DeleteSnapshot = driver.DeleteSnapshot
	GetSnapshot    = driver.GetSnapshot
	Attach         = driver.Attach
	Detach         = driver.Detach
)

// Driver is a running driver with its provisioner and its snapshotter. Many goroutines may call its methods.
type Driver struct {
	options   Options
	driver    *driver.Driver
	kube      kubernetes.Interface
	snapshots snapshotclient.Interface
	caches    *caches
	queue     workqueue.TypedRateLimitingInterface[key]
	recorder  record.EventRecorder
	settled   sync.Map // UIDs of contents whose handle is deleted, maybe not yet in the cache
	stop      func()

	mu        sync.Mutex
	deletions map[string]int // by handle
}

// key identifies an object in the queue.
type key struct{ kind, namespace, name string }

// The kinds of keys.
const (
	claimKind      = "claim"
	volumeKind     = "volume"
	contentKind    = "content"
	attachmentKind = "attachment"
)

// Start registers the driver and waits until its caches have synced. The driver ends by Stop, not with the context.
// An error names the step that failed.
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
	if err := d.register(ctx); err != nil {
		return nil, err
	}
	return d, d.run(ctx)
}

// register creates the CSIDriver. It declares whether volumes need an attachment; without one, nothing waits for an
// attacher.
func (d *Driver) register(ctx context.Context) error {
	driver := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: d.options.Driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(d.options.Attach)},
	}
	_, err := d.kube.StorageV1().CSIDrivers().Create(ctx, driver, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("register driver: %w", err)
	}
	return nil
}

// run starts the informers and workers, and sets the function that stops them.
func (d *Driver) run(started context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(started))
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[key](firstRetry, lastRetry)
	d.queue = workqueue.NewTypedRateLimitingQueue(limiter)
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	core := informers.NewSharedInformerFactory(d.kube, 0)
	snapshots := snapshotinformers.NewSharedInformerFactory(d.snapshots, 0)
	var working sync.WaitGroup
	d.stop = func() {
		cancel()
		d.queue.ShutDown()
		working.Wait()
		core.Shutdown()
		snapshots.Shutdown()
		broadcaster.Shutdown()
	}
	var err error
	if d.recorder, err = newRecorder(broadcaster, d.kube, d.options.Driver); err == nil {
		d.caches, err = newCaches(core, snapshots, d)
	}
	if err == nil {
		core.Start(ctx.Done())
		snapshots.Start(ctx.Done())
		err = d.caches.wait(started)
	}
	if err != nil {
		d.stop()
		return fmt.Errorf("start driver %s: %w", d.options.Driver, err)
	}
	for range workers {
		working.Go(func() { d.work(ctx) })
	}
	return nil
}

// Stop ends the driver. Its volumes and snapshots stay.
func (d *Driver) Stop() { d.stop() }

// Name returns the name of the driver, the provisioner in classes.
func (d *Driver) Name() string { return d.options.Driver }

func (d *Driver) work(ctx context.Context) {
	for {
		item, closed := d.queue.Get()
		if closed {
			return
		}
		after, err := d.sync(ctx, item)
		if err != nil {
			d.queue.AddRateLimited(item)
		} else {
			d.queue.Forget(item)
		}
		if after > 0 {
			d.queue.AddAfter(item, after)
		}
		d.queue.Done(item)
	}
}

// sync reconciles one object and returns the delay until the next reconcile; 0 for none.
func (d *Driver) sync(ctx context.Context, item key) (time.Duration, error) {
	switch item.kind {
	case claimKind:
		return 0, d.syncClaim(ctx, item.namespace, item.name)
	case volumeKind:
		return 0, d.syncVolume(ctx, item.name)
	case attachmentKind:
		return 0, d.syncAttachment(ctx, item.name)
	case contentKind:
		return d.syncContent(ctx, item.name)
	default:
		return 0, errors.New("there is no work of kind " + item.kind)
	}
}

// unserved is the answer of a call that the driver does not serve: its volumes need no attachment.
func unserved() (any, error) { return nil, nil } //nolint:nilnil // only the fault counts

// callAttacher calls the driver for a VolumeAttachment.
func (d *Driver) callAttacher(ctx context.Context, verb Verb, volume string) error {
	_, err := driver.Serve(ctx, d.driver, Call{Verb: verb, Object: volume}, unserved)
	return err
}

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
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.deletions[handle]
}

// VolumeDir returns the directory of a volume.
func (d *Driver) VolumeDir(handle string) string { return d.driver.VolumeDir(handle) }
