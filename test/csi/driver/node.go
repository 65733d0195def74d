package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetInfo implements csi.NodeServer. From then on, volumes can be attached to the node.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	if err := d.store.addNode(d.options.Node); err != nil {
		return nil, statusOf(err)
	}
	return &csi.NodeGetInfoResponse{
		NodeId: d.options.Node, AccessibleTopology: &csi.Topology{Segments: map[string]string{topologyKey(d.options.Name): d.options.Node}},
	}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume implements csi.NodeServer.
func (d *Driver) NodePublishVolume(
	_ context.Context, request *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
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
func (d *Driver) NodeUnpublishVolume(
	_ context.Context, request *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
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
