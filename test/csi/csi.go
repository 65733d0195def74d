// Package csi plays a CSI driver and its sidecars against a real control plane, with directories for volumes and
// copies of directories for snapshots. It never mounts anything and knows nothing of Lateen.
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
)

// DefaultDriver is the name of a driver whose options give none.
const DefaultDriver = "csi.example.com"

// workers is how many volumes and snapshots are worked on at a time.
const workers = 16

// What failed is tried again after firstRetry, then after twice that and so on, up to lastRetry.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// Options say what driver to play. Only Dir is needed.
type Options struct {
	// Driver is its name, by which classes ask for it; "" means DefaultDriver.
	Driver string
	// Dir is an empty directory, where it keeps volumes and snapshots.
	Dir string
	// ReadyDelay is the time from a snapshot's being cut to its being ready to use.
	ReadyDelay time.Duration
	// Topology, if set, is the label of nodes by which volumes are tied to some of them: those that share the value
	// of the claim's selected node, or, of classes that bind immediately, the first value in allowedTopologies.
	Topology string
	// ManagedBy, if set, makes the snapshotter one of a node (external-snapshotter's --node-deployment): it sees only
	// contents whose label snapshot.storage.kubernetes.io/managed-by has this value.
	ManagedBy string
	// DataLess makes snapshots, and volumes made of them, empty: for load.
	DataLess bool
	// Attach has volumes attached to nodes before they are mounted (CSIDriver's attachRequired), by VolumeAttachments.
	Attach bool
	// ClonesHold makes the driver one that clones by copy-on-write: it deletes no snapshot of which a volume exists.
	ClonesHold bool
	// Fault, if set, is asked before everything that the driver does. What it returns becomes the driver's error, and
	// it may take its time, until ctx is done. It is called from many goroutines.
	Fault func(ctx context.Context, call Call) error
}

// Verb is something that a CSI driver is asked to do.
type Verb string

// The verbs, by the names that they have in CSI; Snapshot is the look-up of one that somebody else made.
const (
	CreateVolume   Verb = "CreateVolume"
	DeleteVolume   Verb = "DeleteVolume"
	CreateSnapshot Verb = "CreateSnapshot"
	DeleteSnapshot Verb = "DeleteSnapshot"
	GetSnapshot    Verb = "GetSnapshot"
	Attach         Verb = "ControllerPublishVolume"
	Detach         Verb = "ControllerUnpublishVolume"
)

// Call is something that the driver is asked to do.
type Call struct {
	Verb Verb
	// Handle is the driver's name of the volume or snapshot, or the name of a VolumeAttachment.
	Handle string
	// Object is why: NAMESPACE/NAME of a claim, or the name of a PersistentVolume or VolumeSnapshotContent.
	Object string
}

// Driver is a running driver with its provisioner and its snapshotter. Its methods may be called from many goroutines.
type Driver struct {
	options   Options
	store     *store
	kube      kubernetes.Interface
	snapshots snapshotclient.Interface
	caches    *caches
	queue     workqueue.TypedRateLimitingInterface[key]
	recorder  record.EventRecorder
	settled   sync.Map // UIDs of contents whose handle is deleted, of which the cache may not have heard yet
	stop      func()
}

// key is what there is work on.
type key struct{ kind, namespace, name string }

// The kinds of keys.
const (
	claimKind      = "claim"
	volumeKind     = "volume"
	contentKind    = "content"
	attachmentKind = "attachment"
)

// Start registers the driver and returns when it sees what there is to do. It ends by Stop, not with the context.
func Start(ctx context.Context, config *rest.Config, options Options) (*Driver, error) {
	if options.Driver == "" {
		options.Driver = DefaultDriver
	}
	d := &Driver{options: options}
	var err error
	if d.store, err = newStore(options.Dir, options.DataLess); err != nil {
		return nil, fmt.Errorf("prepare directory of driver %s: %w", options.Driver, err)
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

// register says whether volumes need to be attached; if not, nothing waits for an attacher.
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

// run starts everything and sets what stops it.
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

// Stop ends everything; volumes and snapshots stay where they are.
func (d *Driver) Stop() { d.stop() }

// Name is the driver's, as classes name their provisioner.
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

// sync does what there is to do about one object, and says after which time there is more.
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

// ask lets the test's fault have its say.
func (d *Driver) ask(ctx context.Context, verb Verb, handle, object string) error {
	if d.options.Fault == nil {
		return nil
	}
	return d.options.Fault(ctx, Call{Verb: verb, Handle: handle, Object: object})
}
