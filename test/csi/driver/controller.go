package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// defaultSize is the minimum size of a volume in bytes.
const defaultSize = 1 << 20

// pinned is the parameter of a StorageClass whose volumes can be reached from one node alone, as those of a local disk.
const pinned = "pinned"

// The calls that sidecars make of the controller. GetSnapshot looks up a snapshot of another creator. CSI has no call of
// that name: csi-snapshotter makes ListSnapshots.
const (
	CreateVolume   Verb = "CreateVolume"
	DeleteVolume   Verb = "DeleteVolume"
	CreateSnapshot Verb = "CreateSnapshot"
	DeleteSnapshot Verb = "DeleteSnapshot"
	GetSnapshot    Verb = "GetSnapshot"
)

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, each := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: each}},
		})
	}
	return answer, nil
}

// CreateVolume implements csi.ControllerServer.
func (d *Driver) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d.store.lock.Lock()
	defer d.store.lock.Unlock()
	wanted := item{ID: request.Name, Size: max(request.CapacityRange.GetRequiredBytes(), defaultSize), Created: time.Now()}
	for _, each := range request.VolumeCapabilities {
		wanted.Block = wanted.Block || each.GetBlock() != nil
	}
	volume, err := d.store.get(volumes, wanted.ID)
	if errors.Is(err, errNotFound) {
		volume, err = d.create(ctx, wanted, request.VolumeContentSource)
	}
	if err != nil {
		return nil, statusOf(err)
	}
	if volume.Block != wanted.Block || volume.Size < request.CapacityRange.GetRequiredBytes() {
		return nil, status.Errorf(codes.AlreadyExists, "volume %s exists with another size or mode", volume.ID)
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: volume.ID, CapacityBytes: volume.Size, ContentSource: request.VolumeContentSource, AccessibleTopology: d.topology(request),
	}}, nil
}

// topology returns from where the volume can be reached; nil for everywhere.
func (d *Driver) topology(request *csi.CreateVolumeRequest) []*csi.Topology {
	preferred := request.AccessibilityRequirements.GetPreferred()
	if request.Parameters[pinned] == "true" && len(preferred) > 0 {
		return preferred[:1]
	}
	return nil
}

// create creates a volume, as a copy of a snapshot if there is one.
func (d *Driver) create(ctx context.Context, wanted item, source *csi.VolumeContentSource) (item, error) {
	if source == nil {
		return wanted, d.store.create(ctx, volumes, wanted, "")
	}
	id := source.GetSnapshot().GetSnapshotId()
	origin, err := d.store.get(snapshots, id)
	if err != nil {
		return item{}, err
	}
	if origin.Block != wanted.Block {
		return item{}, status.Errorf(codes.InvalidArgument, "%s has another volume mode", id)
	}
	wanted.Source, wanted.Size = id, max(wanted.Size, origin.Size)
	return wanted, d.store.create(ctx, volumes, wanted, d.store.data(snapshots, id))
}

// DeleteVolume implements csi.ControllerServer.
func (d *Driver) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.store.lock.Lock()
	defer d.store.lock.Unlock()
	return &csi.DeleteVolumeResponse{}, statusOf(d.store.remove(volumes, request.VolumeId))
}

// CreateSnapshot implements csi.ControllerServer.
func (d *Driver) CreateSnapshot(ctx context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	d.store.lock.Lock()
	defer d.store.lock.Unlock()
	snapshot, err := d.store.get(snapshots, request.Name)
	if err == nil && snapshot.Source != request.SourceVolumeId {
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %s is of another volume", request.Name)
	}
	if errors.Is(err, errNotFound) {
		volume, notThere := d.store.get(volumes, request.SourceVolumeId)
		if notThere != nil {
			return nil, statusOf(notThere)
		}
		snapshot = item{ID: request.Name, Size: volume.Size, Block: volume.Block, Source: volume.ID, Created: time.Now()}
		err = d.store.create(ctx, snapshots, snapshot, d.store.data(volumes, volume.ID))
	}
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: d.described(snapshot)}, nil
}

// DeleteSnapshot implements csi.ControllerServer.
func (d *Driver) DeleteSnapshot(_ context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	d.store.lock.Lock()
	defer d.store.lock.Unlock()
	return &csi.DeleteSnapshotResponse{}, statusOf(d.store.remove(snapshots, request.SnapshotId))
}

// ListSnapshots implements csi.ControllerServer.
func (d *Driver) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	all, err := d.store.list(snapshots)
	if err != nil {
		return nil, statusOf(err)
	}
	answer := &csi.ListSnapshotsResponse{}
	for _, each := range all {
		if (request.SnapshotId == "" || request.SnapshotId == each.ID) && (request.SourceVolumeId == "" || request.SourceVolumeId == each.Source) {
			answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: d.described(each)})
		}
	}
	return answer, nil
}

func (d *Driver) described(snapshot item) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: snapshot.ID, SourceVolumeId: snapshot.Source, SizeBytes: snapshot.Size,
		CreationTime: timestamppb.New(snapshot.Created), ReadyToUse: time.Since(snapshot.Created) >= d.options.ReadyDelay,
	}
}

// statusOf returns an error as gRPC knows it.
func statusOf(err error) error {
	if _, isStatus := status.FromError(err); isStatus { // nil is one too
		return err
	}
	if errors.Is(err, errNotFound) {
		return status.Error(codes.NotFound, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

// ControllerPublishVolume implements csi.ControllerServer. A volume that one node may write to is attached to one node at a time.
func (d *Driver) ControllerPublishVolume(_ context.Context, request *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	d.store.lock.Lock()
	defer d.store.lock.Unlock()
	volume, err := d.store.get(volumes, request.VolumeId)
	if err != nil {
		return nil, statusOf(err)
	}
	if _, err := d.store.get(nodes, request.NodeId); err != nil {
		return nil, statusOf(err)
	}
	if slices.Contains(volume.Attached, request.NodeId) {
		return &csi.ControllerPublishVolumeResponse{}, nil
	}
	if len(volume.Attached) > 0 && singleNode(request.VolumeCapability) {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to %v", volume.ID, volume.Attached)
	}
	volume.Attached = append(volume.Attached, request.NodeId)
	return &csi.ControllerPublishVolumeResponse{}, statusOf(d.store.describe(volumes, volume))
}

// ControllerUnpublishVolume implements csi.ControllerServer. Without a node, the volume is detached from all.
func (d *Driver) ControllerUnpublishVolume(_ context.Context, request *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	d.store.lock.Lock()
	defer d.store.lock.Unlock()
	answer := &csi.ControllerUnpublishVolumeResponse{}
	volume, err := d.store.get(volumes, request.VolumeId)
	if err != nil {
		if errors.Is(err, errNotFound) {
			return answer, nil
		}
		return nil, statusOf(err)
	}
	volume.Attached = slices.DeleteFunc(volume.Attached, func(node string) bool { return request.NodeId == "" || node == request.NodeId })
	return answer, statusOf(d.store.describe(volumes, volume))
}

func singleNode(capability *csi.VolumeCapability) bool {
	switch capability.AccessMode.GetMode() {
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return false
	default:
		return true
	}
}

// NodeGetInfo implements csi.NodeServer. From then on, volumes can be attached to the node.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	if err := d.store.addNode(d.options.Node); err != nil {
		return nil, statusOf(err)
	}
	return &csi.NodeGetInfoResponse{
		NodeId: d.options.Node, AccessibleTopology: &csi.Topology{Segments: map[string]string{d.options.Name + "/node": d.options.Node}},
	}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume implements csi.NodeServer.
func (d *Driver) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	volume, err := d.store.get(volumes, request.VolumeId)
	if err != nil {
		return nil, statusOf(err)
	}
	if (request.VolumeCapability.GetBlock() != nil) != volume.Block {
		return nil, status.Errorf(codes.InvalidArgument, "volume %s has the other volume mode", volume.ID)
	}
	d.store.lock.Lock()
	defer d.store.lock.Unlock()
	if published, err := isMounted(request.TargetPath); err != nil || published {
		return &csi.NodePublishVolumeResponse{}, statusOf(err)
	}
	source := d.store.data(volumes, volume.ID)
	if volume.Block {
		return &csi.NodePublishVolumeResponse{}, statusOf(publishBlock(source, request.TargetPath))
	}
	if err := os.MkdirAll(request.TargetPath, 0o750); err != nil {
		return nil, statusOf(err)
	}
	return &csi.NodePublishVolumeResponse{}, statusOf(bind(source, request.TargetPath, request.Readonly))
}

func publishBlock(source, target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	file, err := os.OpenFile(target, os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	device, err := attach(source)
	if err != nil {
		return fmt.Errorf("attach a loop device: %w", err)
	}
	if err := bind(device, target, false); err != nil {
		return errors.Join(err, detach(device))
	}
	return nil
}

func bind(source, target string, readonly bool) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s at %s: %w", source, target, err)
	}
	if !readonly {
		return nil
	}
	return unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// NodeUnpublishVolume implements csi.NodeServer.
func (d *Driver) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	d.store.lock.Lock()
	defer d.store.lock.Unlock()
	published, err := isMounted(request.TargetPath)
	if err != nil {
		return nil, statusOf(err)
	}
	if published {
		device, err := deviceAt(request.TargetPath)
		if err != nil {
			return nil, statusOf(err)
		}
		if err := unix.Unmount(request.TargetPath, 0); err != nil {
			return nil, statusOf(fmt.Errorf("unmount %s: %w", request.TargetPath, err))
		}
		if device != "" {
			if err := detach(device); err != nil {
				return nil, statusOf(fmt.Errorf("detach %s: %w", device, err))
			}
		}
	}
	if err := os.Remove(request.TargetPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, statusOf(err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
