// Package csi plays the sidecars of a CSI driver: csi-provisioner by the library that it is made with, and csi-snapshotter. They
// call the same driver as the real sidecars of the cluster with a real kubelet. Volumes are directories, and snapshots are copies of
// directories. It never mounts anything and does not depend on Lateen.
package csi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
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

const (
	// snapshotKind is the supported kind of data source.
	snapshotKind = "VolumeSnapshot"
	// modeChangeAnnotation on a content permits volumes with another mode (KEP-3141).
	modeChangeAnnotation = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
	// fstypeParameter of a class is the file system of its volumes (external-provisioner).
	fstypeParameter = "csi.storage.k8s.io/fstype"
	// dirAttribute is the CSI volume attribute with the directory of the volume's bytes.
	dirAttribute = "dir"
)

// provisioner is what external-provisioner adds to the library of provisioners.
type provisioner struct{ *Driver }

// SupportsBlock implements controller.BlockProvisioner.
func (provisioner) SupportsBlock(context.Context) bool { return true }

// Provision implements controller.Provisioner. It is idempotent.
func (p provisioner) Provision(
	ctx context.Context, options controller.ProvisionOptions,
) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	volume, err := p.provision(ctx, options)
	if err != nil {
		err = fmt.Errorf("failed to provision volume with StorageClass %q: %w", options.StorageClass.Name, err)
	}
	return volume, controller.ProvisioningFinished, err
}

// provision calls the driver as external-provisioner does. A simulated node has no devices, so a block volume is a directory too.
func (p provisioner) provision(ctx context.Context, options controller.ProvisionOptions) (*corev1.PersistentVolume, error) {
	claim, class := options.PVC, options.StorageClass
	if claim.Spec.Selector != nil {
		return nil, errors.New("claim Selector is not supported")
	}
	snapshot, err := p.origin(ctx, claim)
	if err != nil {
		return nil, err
	}
	fstype := class.Parameters[fstypeParameter]
	request := &csi.CreateVolumeRequest{
		Name: options.PVName, Parameters: class.Parameters,
		CapacityRange: &csi.CapacityRange{RequiredBytes: requestedBytes(claim)},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fstype}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	}
	if snapshot != "" {
		request.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot},
		}}
	}
	call := Call{Verb: CreateVolume, Object: claim.Namespace + "/" + claim.Name}
	created, err := driver.Serve(ctx, p.driver, call, p.driver.CreateVolume, request)
	if err != nil {
		return nil, err
	}
	handle := created.Volume.VolumeId
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: options.PVName},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes: claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode, MountOptions: class.MountOptions,
			PersistentVolumeReclaimPolicy: ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: p.options.Driver, VolumeHandle: handle, FSType: fstype,
				VolumeAttributes: map[string]string{dirAttribute: p.VolumeDir(handle)},
			}},
		},
	}, nil
}

// Delete implements controller.Provisioner.
func (p provisioner) Delete(ctx context.Context, volume *corev1.PersistentVolume) error {
	request := &csi.DeleteVolumeRequest{VolumeId: volume.Spec.CSI.VolumeHandle}
	_, err := driver.Serve(ctx, p.driver, Call{Verb: driver.DeleteVolume, Object: volume.Name}, p.driver.DeleteVolume, request)
	return err
}

// origin returns the handle of the claim's source snapshot; "" for an empty volume. It rejects what external-provisioner rejects.
func (d *Driver) origin(ctx context.Context, claim *corev1.PersistentVolumeClaim) (string, error) {
	source := claim.Spec.DataSource
	if source == nil {
		return "", nil
	}
	if source.Kind != snapshotKind {
		return "", fmt.Errorf("data source %s %s is not a VolumeSnapshot", source.Kind, source.Name)
	}
	snapshot, err := d.snapshots.SnapshotV1().VolumeSnapshots(claim.Namespace).Get(ctx, source.Name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get snapshot %s: %w", source.Name, err)
	}
	status := snapshot.Status
	switch {
	case snapshot.DeletionTimestamp != nil:
		return "", fmt.Errorf("snapshot %s is being deleted", source.Name)
	case status == nil || !ptr.Deref(status.ReadyToUse, false) || status.BoundVolumeSnapshotContentName == nil:
		return "", fmt.Errorf("snapshot %s is not ready", source.Name)
	}
	content, err := d.snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, *status.BoundVolumeSnapshotContentName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get content of snapshot %s: %w", source.Name, err)
	}
	mode := ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	switch {
	case content.Spec.VolumeSnapshotRef.UID != snapshot.UID:
		return "", fmt.Errorf("content %s is of another snapshot", content.Name)
	case content.Spec.Driver != d.options.Driver:
		return "", fmt.Errorf("content %s is of driver %s", content.Name, content.Spec.Driver)
	case content.Status == nil || content.Status.SnapshotHandle == nil:
		return "", fmt.Errorf("content %s has no handle", content.Name)
	case ptr.Deref(content.Status.RestoreSize, 0) > requestedBytes(claim):
		return "", fmt.Errorf("%d bytes are less than the %d of the snapshot", requestedBytes(claim), *content.Status.RestoreSize)
	case ptr.Deref(content.Spec.SourceVolumeMode, mode) != mode && content.Annotations[modeChangeAnnotation] != "true":
		return "", fmt.Errorf("content %s does not permit another volume mode", content.Name)
	}
	return *content.Status.SnapshotHandle, nil
}

func requestedBytes(claim *corev1.PersistentVolumeClaim) int64 {
	return claim.Spec.Resources.Requests.Storage().Value()
}
