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
func (s *env) expire(kind testenv.Kind, name string) {
	accepted := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	require.NoError(s, s.Transfers(kind).Patch(s.soon(), name, fmt.Sprintf(`{"status":{"acceptedTimestamp":%q}}`, accepted)))
}

// expire backdates an accepted transfer and replaces the agent. The next one lists all objects before its first step, so
// it has observed whatever the test has.
func (r *agentRun) expire(kind testenv.Kind, name string) *agentRun {
	r.env.Helper()
	r.stop()
	r.env.expire(kind, name)
	return r.env.start()
}

// pending waits until the mover pod has a status from which an agent reads these words.
func (s *env) pending(name, description string) {
	s.moverIs(name, func(pod *corev1.Pod) bool { return strings.Contains(objects.ReadPod(pod).Message, description) })
}

// holds keeps the pod of a mover when it has ended, so that whoever looks late sees how, until what it returns is called.
func (s *env) holds(name string) (letGo func()) {
	finalizers := func(value string) error {
		patch := []byte(`{"metadata":{"finalizers":` + value + `}}`)
		_, err := s.Kube.CoreV1().Pods(s.Namespace).Patch(s.soon(), name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	require.NoError(s, finalizers(`["example.com/held"]`))
	return func() {
		s.Helper()
		require.NoError(s, finalizers("null"))
	}
}
