package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// waitsFor asks for a pod whose container waits for a reason.
func waitsFor(reason string) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		for _, status := range pod.Status.ContainerStatuses {
			if status.State.Waiting != nil && status.State.Waiting.Reason == reason {
				return true
			}
		}
		return false
	}
}

func TestATransferWhoseImageIsPulledFirst(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pull  node.Pull
		shows string // what the container of the mover waits for
		phase testenv.Phase
	}{
		"completes after failures":              {pull: node.Pull{Takes: 400 * time.Millisecond, Fails: 2}, shows: "ImagePullBackOff", phase: testenv.Completed},
		"is canceled while the image is pulled": {pull: node.Pull{Takes: time.Hour}, shows: "ContainerCreating", phase: testenv.Canceled},
	} {
		for _, kind := range testenv.Kinds() {
			t.Run(fmt.Sprintf("%s %s", kind, name), func(t *testing.T) {
				s := newEnv(t, 50*time.Millisecond)
				around := s.workload(kind)
				s.node.Faults.Add(node.Fault{Pulls: &test.pull})
				s.start(fixture.Through(around.watch))
				created := around.create()
				s.moverIs(created, waitsFor(test.shows))
				if test.phase == testenv.Canceled {
					require.NoError(t, s.Transfers(kind).Cancel(s.soon(), created))
				}
				ended := around.ends(created, test.phase)
				require.Empty(t, ended.Annotations[api.AnnotationRestarts])
				require.Equal(t, 1, s.moversMade(created))
			})
		}
	}
}
