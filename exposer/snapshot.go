package exposer

import (
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
)

// Snapshots is where an exposer sees and changes the snapshots of volumes.
type Snapshots interface {
	// Client changes them.
	Client() snapshotclient.SnapshotV1Interface
}
