package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// A kubelet is updated or crashes, and comes back; containers do not need it. What it has not reported yet is not lost.
func TestATransferOutlivesARestartOfTheKubelet(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ends  bool // the mover, while there is no kubelet
		early bool // the kubelet stops before the mover is started
		phase testenv.Phase
	}{
		"while its mover waits for a node":       {early: true, phase: testenv.Completed},
		"while its mover works":                  {phase: testenv.Completed},
		"while its mover ends":                   {ends: true, phase: testenv.Completed},
		"while its mover works, and is canceled": {phase: testenv.Canceled},
	} {
		for _, kind := range testenv.Kinds() {
			t.Run(fmt.Sprintf("%s %s", kind, name), func(t *testing.T) {
				s := newEnv(t, time.Hour)
				finish := make(chan struct{})
				s.Movers.Finish = finish
				around := s.workload(kind)
				s.start(fixture.Through(around.watch))
				if test.early {
					s.node.StopKubelet()
				}
				created := around.create()
				if test.early {
					s.moverIs(created, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
				} else {
					s.says("Data-Path-Started", created)
					s.node.StopKubelet()
				}
				if test.ends {
					close(finish)
					s.says("Data-Path-Completed", "")
				}
				if test.phase == testenv.Canceled {
					require.NoError(t, s.Transfers(kind).Cancel(s.soon(), created))
					s.says("Data-Path-Canceled", created)
				}
				require.NoError(t, s.node.Resume(s.soon()))
				if !test.ends && test.phase == testenv.Completed {
					close(finish)
				}
				ended := around.ends(created, test.phase)
				require.Empty(t, ended.Annotations[api.AnnotationRestarts])
				require.Equal(t, 1, s.moversMade(created))
			})
		}
	}
}
