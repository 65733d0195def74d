package main

import (
	"context"
	"errors"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// defaultSize is that of a volume for which none is asked.
const defaultSize = 1 << 20

// topologyKey is the node label by which the driver says from where a volume can be reached.
const topologyKey = driverName + "/node"

// pinned is the parameter of a StorageClass whose volumes can be reached from one node alone, as those of a local disk.
const pinned = "pinned"

type controller struct {
	csi.UnimplementedControllerServer
	store *store
}

func (c controller) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, each := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS, csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: each}},
		})
	}
	return answer, nil
}

func (c controller) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if request.Name == "" || len(request.VolumeCapabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a volume needs a name and capabilities")
	}
	c.store.lock.Lock()
	defer c.store.lock.Unlock()
	wanted := item{ID: request.Name, Size: max(request.CapacityRange.GetRequiredBytes(), defaultSize), Made: time.Now()}
	for _, each := range request.VolumeCapabilities {
		wanted.Block = wanted.Block || each.GetBlock() != nil
	}
	if limit := request.CapacityRange.GetLimitBytes(); limit > 0 && limit < wanted.Size {
		return nil, status.Errorf(codes.OutOfRange, "a volume has at least %d bytes", wanted.Size)
	}
	volume, err := c.store.get(volumes, wanted.ID)
	if errors.Is(err, errNotFound) {
		volume, err = c.create(wanted, request.VolumeContentSource)
	}
	if err != nil {
		return nil, failure(err)
	}
	if volume.Block != wanted.Block || volume.Size < request.CapacityRange.GetRequiredBytes() ||
		request.CapacityRange.GetLimitBytes() > 0 && volume.Size > request.CapacityRange.GetLimitBytes() {
		return nil, status.Errorf(codes.AlreadyExists, "volume %s exists with another size or mode", volume.ID)
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: volume.ID, CapacityBytes: volume.Size, ContentSource: request.VolumeContentSource, AccessibleTopology: place(request),
	}}, nil
}

// place is where the volume can be reached from; nil is everywhere.
func place(request *csi.CreateVolumeRequest) []*csi.Topology {
	if preferred := request.AccessibilityRequirements.GetPreferred(); request.Parameters[pinned] == "true" && len(preferred) > 0 {
		return preferred[:1]
	}
	return nil
}

// create makes a volume, a copy of source if there is one.
func (c controller) create(wanted item, source *csi.VolumeContentSource) (item, error) {
	if source == nil {
		return wanted, c.store.make(volumes, wanted, "")
	}
	kind, id := snapshots, source.GetSnapshot().GetSnapshotId()
	if volume := source.GetVolume(); volume != nil {
		kind, id = volumes, volume.VolumeId
	}
	origin, err := c.store.get(kind, id)
	if err != nil {
		return item{}, err
	}
	if origin.Block != wanted.Block {
		return item{}, status.Errorf(codes.InvalidArgument, "%s has another volume mode", id)
	}
	wanted.Source, wanted.Size = id, max(wanted.Size, origin.Size)
	return wanted, c.store.make(volumes, wanted, c.store.data(kind, id))
}

func (c controller) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if request.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "which volume?")
	}
	c.store.lock.Lock()
	defer c.store.lock.Unlock()
	return &csi.DeleteVolumeResponse{}, failure(c.store.remove(volumes, request.VolumeId))
}

func (c controller) ValidateVolumeCapabilities(
	_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if request.VolumeId == "" || len(request.VolumeCapabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "which volume, and which capabilities?")
	}
	volume, err := c.store.get(volumes, request.VolumeId)
	if err != nil {
		return nil, failure(err)
	}
	answer := &csi.ValidateVolumeCapabilitiesResponse{}
	for _, each := range request.VolumeCapabilities {
		if (each.GetBlock() != nil) != volume.Block {
			return answer, nil
		}
	}
	answer.Confirmed = &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: request.VolumeCapabilities}
	return answer, nil
}

func (c controller) CreateSnapshot(_ context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if request.Name == "" || request.SourceVolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "a snapshot needs a name and a volume")
	}
	c.store.lock.Lock()
	defer c.store.lock.Unlock()
	snapshot, err := c.store.get(snapshots, request.Name)
	if err == nil && snapshot.Source != request.SourceVolumeId {
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %s is of another volume", request.Name)
	}
	if errors.Is(err, errNotFound) {
		volume, notThere := c.store.get(volumes, request.SourceVolumeId)
		if notThere != nil {
			return nil, failure(notThere)
		}
		snapshot = item{ID: request.Name, Size: volume.Size, Block: volume.Block, Source: volume.ID, Made: time.Now()}
		err = c.store.make(snapshots, snapshot, c.store.data(volumes, volume.ID))
	}
	if err != nil {
		return nil, failure(err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: described(snapshot)}, nil
}

func (c controller) DeleteSnapshot(_ context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if request.SnapshotId == "" {
		return nil, status.Error(codes.InvalidArgument, "which snapshot?")
	}
	c.store.lock.Lock()
	defer c.store.lock.Unlock()
	return &csi.DeleteSnapshotResponse{}, failure(c.store.remove(snapshots, request.SnapshotId))
}

func (c controller) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	all, err := c.store.list(snapshots)
	if err != nil {
		return nil, failure(err)
	}
	answer := &csi.ListSnapshotsResponse{}
	for _, each := range all {
		if (request.SnapshotId == "" || request.SnapshotId == each.ID) && (request.SourceVolumeId == "" || request.SourceVolumeId == each.Source) {
			answer.Entries = append(answer.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: described(each)})
		}
	}
	return paged(answer, request)
}

func described(snapshot item) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: snapshot.ID, SourceVolumeId: snapshot.Source, SizeBytes: snapshot.Size,
		CreationTime: timestamppb.New(snapshot.Made), ReadyToUse: true,
	}
}

func failure(err error) error {
	if _, isStatus := status.FromError(err); isStatus { // nil is one too
		return err
	}
	if errors.Is(err, errNotFound) {
		return status.Error(codes.NotFound, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}
