package driver

import (
	"context"
	"errors"
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
func (d *Driver) ControllerUnpublishVolume(
	_ context.Context, request *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
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
