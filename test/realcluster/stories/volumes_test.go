package stories

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// mixedManifest has a claim of which the pod sees a directory alone, a directory of the host, and a volume that the
// kubelet writes.
const mixedManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim, namespace: %[1]s}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata:
  name: app
  namespace: %[1]s
  annotations: {backup.velero.io/backup-volumes: "claim,host,facts"}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: app
    image: localhost/tools:v1
    command: [/bin/sh, -c, "sleep 1000000"]
    volumeMounts:
    - {name: claim, mountPath: /claim, subPath: part/of/it}
    - {name: host, mountPath: /host}
    - {name: facts, mountPath: /facts}
  volumes:
  - {name: claim, persistentVolumeClaim: {claimName: claim}}
  - {name: host, hostPath: {path: /var/log, type: Directory}}
  - name: facts
    projected: {sources: [{downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}
`

// A claim of which a pod mounts a subPath is backed up whole. Of the other two volumes, which the pod asks for too, Velero's
// server makes no transfers: a hostPath is the node's, and the kubelet writes a projected volume anew.
func TestSubPathsComeBackAndVolumesOfTheNodeDoNot(t *testing.T) {
	a := &app{t: t, namespace: "mixed", paths: []string{"/claim"}}
	a.deploy(mixedManifest)
	a.sh(contents, "/claim")
	before := a.prints()
	a.backup("mixed")
	volumes := get(t, "{range .items[*]}{.spec.volume} {.status.phase},{end}", "podvolumebackups", "--namespace=velero", "--selector=velero.io/backup-name=mixed")
	require.Equal(t, "claim Completed,", volumes)
	a.lose()
	a.restore("mixed")
	a.ready()
	require.Equal(t, before, a.prints())
	require.Equal(t, "claim", get(t, "{.items[*].spec.volume}", "podvolumerestores", "--namespace=velero", "--selector=velero.io/restore-name=mixed"))
	require.Equal(t, "app", a.sh(`cat "$1"`, "/facts/name"))
	noMoverLeft(t)
}
