// Package csi plays the sidecars of a CSI driver: csi-provisioner and csi-snapshotter. They call the same driver as the real
// sidecars of the cluster with a real kubelet. Volumes are directories, and snapshots are copies of directories. It never mounts
// anything and does not depend on Lateen.
package csi

import (
	"context"
	"fmt"
	"sync"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/lateen-project/lateen/test/csi/driver"
)

// DefaultDriver is the default name of a driver.
const DefaultDriver = "csi.example.com"

// workers is the number of concurrent workers for volumes, and for snapshots.
const workers = 16

// Options configure a driver. Name and Dir are required.
type Options = driver.Options

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
	d := &Driver{options: options, deletions: map[string]int{}}
	var err error
	if d.driver, err = driver.New(options); err != nil {
		return nil, err
	}
	if d.kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	if d.snapshots, err = snapshotclient.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make client of snapshots: %w", err)
	}
	kube := informers.NewSharedInformerFactory(d.kube, 0).Core().V1()
	snapshots := snapshotinformers.NewSharedInformerFactory(d.snapshots, 0).Snapshot().V1()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	recorder := record.NewBroadcaster(record.WithContext(ctx))
	recorder.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: d.kube.CoreV1().Events("")})
	p := &provisioner{
		Driver: d, volumes: kube.PersistentVolumes().Informer().GetStore(),
		events: recorder.NewRecorder(scheme.Scheme, corev1.EventSource{Component: options.Name}),
	}
	s := &snapshotter{Driver: d}
	claims := newLoop(kube.PersistentVolumeClaims().Informer(), p.syncClaim)
	volumes := newLoop(kube.PersistentVolumes().Informer(), p.syncVolume)
	contents := newLoop(snapshots.VolumeSnapshotContents().Informer(), s.sync)
	s.queue = contents.queue
	var working sync.WaitGroup
	for _, run := range []func(context.Context){claims.run, volumes.run, contents.run} {
		working.Go(func() { run(ctx) })
	}
	d.stop = func() {
		cancel()
		working.Wait()
		recorder.Shutdown()
	}
	return d, nil
}

// loop calls sync for each object that is new or changed, and again with a growing delay after an error.
type loop[T runtime.Object] struct {
	informer cache.SharedIndexInformer
	queue    workqueue.TypedRateLimitingInterface[string] // keys of objects
	sync     func(context.Context, T) error
}

func newLoop[T runtime.Object](informer cache.SharedIndexInformer, sync func(context.Context, T) error) *loop[T] {
	retries := workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 2*time.Second)
	l := &loop[T]{informer: informer, queue: workqueue.NewTypedRateLimitingQueue(retries), sync: sync}
	changed := func(object any) {
		if key, err := cache.MetaNamespaceKeyFunc(object); err == nil {
			l.queue.Add(key)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, now any) { changed(now) }})
	utilruntime.Must(err) // it is not stopped
	return l
}

func (l *loop[T]) run(ctx context.Context) {
	var working sync.WaitGroup
	defer working.Wait()
	defer l.queue.ShutDown()
	for range workers {
		working.Go(func() { l.work(ctx) })
	}
	l.informer.RunWithContext(ctx)
}

func (l *loop[T]) work(ctx context.Context) {
	for {
		key, closed := l.queue.Get()
		if closed {
			return
		}
		object, exists, err := l.informer.GetStore().GetByKey(key)
		if typed, ok := object.(T); exists && ok {
			err = l.sync(ctx, typed)
		}
		if err != nil {
			l.queue.AddRateLimited(key)
		} else {
			l.queue.Forget(key)
		}
		l.queue.Done(key)
	}
}

// Stop ends the driver. Its volumes and snapshots stay.
func (d *Driver) Stop() { d.stop() }

// Name returns the name of the driver, the provisioner in classes.
func (d *Driver) Name() string { return d.options.Name }

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
