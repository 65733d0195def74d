package driver

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ControllerPublishVolume implements csi.ControllerServer. A volume that one node may write to is attached to one node at
// a time.
func (d *Driver) ControllerPublishVolume(
	_ context.Context, request *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	if request.VolumeId == "" || request.NodeId == "" || request.VolumeCapability == nil {
		return nil, status.Error(codes.InvalidArgument, "attaching needs a volume, a node and a capability")
	}
	d.store.lock.Lock()
	defer d.store.lock.Unlock()
	volume, err := d.store.get(volumes, request.VolumeId)
	if err != nil {
		return nil, statusOf(err)
	}
	if _, err := d.store.get(nodes, request.NodeId); err != nil {
		return nil, statusOf(err)
	}
	readonly, attached := volume.Attached[request.NodeId]
	switch {
	case attached && readonly != request.Readonly:
		return nil, status.Errorf(codes.AlreadyExists, "volume %s is attached with readonly=%t", volume.ID, readonly)
	case attached:
		return &csi.ControllerPublishVolumeResponse{}, nil
	case len(volume.Attached) > 0 && singleNode(request.VolumeCapability):
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is attached to %v", volume.ID, slices.Sorted(maps.Keys(volume.Attached)))
	}
	if volume.Attached == nil {
		volume.Attached = map[string]bool{}
	}
	volume.Attached[request.NodeId] = request.Readonly
	return &csi.ControllerPublishVolumeResponse{}, statusOf(d.store.describe(volumes, volume))
}

// ControllerUnpublishVolume implements csi.ControllerServer. Without a node, the volume is detached from all.
func (d *Driver) ControllerUnpublishVolume(
	_ context.Context, request *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	if request.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "detaching needs a volume")
	}
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
	maps.DeleteFunc(volume.Attached, func(node string, _ bool) bool { return request.NodeId == "" || node == request.NodeId })
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
