package stories

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
)

const urgentManifest = `
apiVersion: v1
kind: Pod
metadata: {name: urgent, namespace: default}
spec:
  priorityClassName: system-cluster-critical
  terminationGracePeriodSeconds: 0
  containers:
  - name: urgent
    image: localhost/tools:v1
    command: [/bin/sh, -c, "sleep 1000000"]
    resources: {requests: {memory: "%d"}}
`

// The scheduler itself preempts: what the node has does not suffice for the mover and the urgent pod.
func TestAMoverThatThePrioritiesPreemptStartsAgain(t *testing.T) {
	kubectl(t, "create", "priorityclass", "velero-low", "--value=-100")
	t.Cleanup(func() { kubectl(t, "delete", "priorityclass", "velero-low") })
	configure(t, `{"priorityClassName":"velero-low","podResources":{"memoryRequest":"4Gi"}}`)
	h := hold(t, newClaimApp(t, "preempted"), "preempted")
	allocatable := resource.MustParse(get(t, "{.status.allocatable.memory}", "node", "node"))
	t.Cleanup(func() { kubectl(t, "delete", "pod", "urgent", "--namespace=default", "--ignore-not-found") })
	feed(t, fmt.Sprintf(urgentManifest, allocatable.Value()-2<<30), "kubectl", "apply", "-f", "-")
	wait(t, "condition=Ready", "pod/urgent", "--namespace=default")
	until(t, "{.metadata.uid} {.status.phase}", func(line string) bool { return line != h.uid+" Running" && line != h.uid+" Pending" },
		"pods", "--field-selector=metadata.name="+h.mover)
	kubectl(t, "delete", "pod", "urgent", "--namespace=default")
	h.restarted(t)
	h.ends(t)
}

// A mover that needs more than its limit would need it again: its backup fails, and the message names the limit.
func TestAMoverThatRunsOutOfMemoryFailsWithItsLimit(t *testing.T) {
	a := newClaimApp(t, "hungry")
	a.backup("hungry-before", "--default-volumes-to-fs-backup")
	before := a.prints()
	configure(t, `{"podResources":{"memoryRequest":"24Mi","memoryLimit":"24Mi"}}`)
	velero(t, "backup", "create", "hungry", "--include-namespaces=hungry", "--default-volumes-to-fs-backup", "--wait")
	message := get(t, "{.items[0].status.phase}: {.items[0].status.message}", "podvolumebackups", "--namespace=velero", "--selector=velero.io/backup-name=hungry")
	require.Regexp(t, "^Failed: .*out of memory.*24Mi", message)
	noMoverLeft(t)
	configure(t, "{}")
	a.lose()
	a.restore("hungry-before")
	a.ready()
	require.Equal(t, before, a.prints())
}
