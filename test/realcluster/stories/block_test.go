package stories

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const blockManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim, namespace: %[1]s}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  resources: {requests: {storage: 32Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: app, namespace: %[1]s}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: app
    image: localhost/tools:v1
    command: [/bin/sh, -c, "sleep 1000000"]
    volumeDevices: [{name: claim, devicePath: /dev/claim}]
  volumes: [{name: claim, persistentVolumeClaim: {claimName: claim}}]
`

func TestTheDataOfABlockVolumeIsMovedThereAndBack(t *testing.T) {
	a := &app{t: t, namespace: "raw"}
	a.deploy(blockManifest)
	a.sh(`dd if=/dev/urandom of="$1" bs=1M count=32 conv=fsync`, "/dev/claim")
	before := a.sh(`sha256sum <"$1"`, "/dev/claim")
	a.backup("raw-data", "--snapshot-move-data")
	require.Equal(t, []string{"Completed"}, phases(t, "datauploads", "velero.io/backup-name=raw-data"))
	a.lose()
	a.restore("raw-data")
	a.ready()
	require.Equal(t, []string{"Completed"}, phases(t, "datadownloads", "velero.io/restore-name=raw-data"))
	require.Equal(t, before, a.sh(`sha256sum <"$1"`, "/dev/claim"))
	noMoverLeft(t)
}
