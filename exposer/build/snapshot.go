package build

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
)

// SnapshotPair is a VolumeSnapshot and the VolumeSnapshotContent that it is bound to; nil is one that is not there.
type SnapshotPair struct {
	Snapshot *snapshotv1.VolumeSnapshot
	Content  *snapshotv1.VolumeSnapshotContent
}
