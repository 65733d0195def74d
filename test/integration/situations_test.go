package integration

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/testenv"
)

// noRoom has movers ask for more than any node has.
const noRoom = `{"podResources":{"cpuRequest":"4000"}}`

// expire backdates an accepted transfer, so that its prepare timeout has passed. The agent that runs fails it with what it
// has observed so far, which may be less than what the test has: every cache has a watch of its own.
func (e *env) expire(kind testenv.Kind, name string) {
	accepted := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	require.NoError(e, e.Transfers(kind).Patch(e.soon(), name, fmt.Sprintf(`{"status":{"acceptedTimestamp":%q}}`, accepted)))
}

// expire backdates an accepted transfer and replaces the agent. The next one lists all objects before its first step, so
// it has observed whatever the test has.
func (a *agentRun) expire(kind testenv.Kind, name string) *agentRun {
	a.env.Helper()
	a.stop()
	a.env.expire(kind, name)
	return a.env.start()
}

// pending waits until the mover pod has a status from which an agent reads these words.
func (e *env) pending(name, description string) {
	e.moverIs(name, func(pod *corev1.Pod) bool { return strings.Contains(objects.ReadPod(pod).Message, description) })
}

// holds keeps the pod of a mover when it has ended, so that whoever looks late sees how, until what it returns is called.
func (e *env) holds(name string) (letGo func()) {
	finalizers := func(value string) error {
		patch := []byte(`{"metadata":{"finalizers":` + value + `}}`)
		_, err := e.Kube.CoreV1().Pods(e.Namespace).Patch(e.soon(), name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	require.NoError(e, finalizers(`["example.com/held"]`))
	return func() {
		e.Helper()
		require.NoError(e, finalizers("null"))
	}
}
