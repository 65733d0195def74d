package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// scheduled waits for the mover of a transfer, with what admission made of it.
func (e *env) scheduled(name string) *corev1.Pod {
	return e.moverIs(name, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
}

func TestAnEditedConfigMapIsInForceWithoutARestart(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.start()
	first := s.transfer()
	require.Empty(t, s.scheduled(first).Spec.PriorityClassName)
	s.ends(first, testenv.Completed)

	class := s.class()
	s.configure(`{"priorityClassName":"` + class + `","podLabels":{"team":"storage"},"podResources":{"cpuRequest":"10m"},"loadConcurrency":{"globalConfig":2,"prepareQueueLength":3}}`)
	require.Equal(t, corev1.EventTypeNormal, s.says("ConfigApplied", "priorityClassName, loadConcurrency, podResources, podLabels").Type)
	require.Equal(t, corev1.EventTypeWarning, s.says("ConfigNotApplied", "Restart the agents to apply loadConcurrency.prepareQueueLength").Type)
	second := s.transfer()
	mover := s.scheduled(second)
	require.Equal(t, class, mover.Spec.PriorityClassName)
	require.Equal(t, "storage", mover.Labels["team"])
	require.Equal(t, "10m", mover.Spec.Containers[0].Resources.Requests.Cpu().String())
	s.ends(second, testenv.Completed)
	reads := s.requests(cluster.Query{Verbs: []string{"get"}, Resources: []string{"configmaps"}, Name: fixture.ConfigMap})
	require.Len(t, reads, 1, "only the start reads it")
}
