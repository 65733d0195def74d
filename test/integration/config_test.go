package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestWithoutItsConfigMapAnAgentSaysSoAndMovesWithoutAClass(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	require.NoError(t, s.Kube.CoreV1().ConfigMaps(s.Namespace).Delete(s.soon(), fixture.ConfigMap, metav1.DeleteOptions{}))
	r := s.start()
	s.ends(s.transfer(), testenv.Completed)
	r.countsEnd("kind", "podvolumebackup", "phase", "Completed", "reason", "completed")
	require.Equal(t, 1, r.metric("lateen_slots_limit"), "the default")
	require.Equal(t, 1, r.metric("lateen_config_fallbacks_total", "section", "configMap", "reason", "missing"))
	require.Equal(t, 1, r.metric("lateen_priority_class_info", "consumer", "data-mover", "effective", ""))
	require.Equal(t, 1, r.metric("lateen_priority_class_fallbacks_total", "consumer", "data-mover", "reason", "config_missing"))
	s.says("PriorityClassNotInForce", "config_missing")
	event := s.says("ConfigProblem", "does not exist")
	require.Equal(t, corev1.EventTypeWarning, event.Type)
	require.Equal(t, "Pod", event.InvolvedObject.Kind)
	require.True(t, strings.HasPrefix(event.InvolvedObject.Name, "node-agent-"), event.InvolvedObject.Name)
}

// scheduled waits for the mover of a transfer, with what admission made of it.
func (e *env) scheduled(name string) *corev1.Pod {
	return e.moverIs(name, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
}

func TestAnEditedConfigMapIsInForceWithoutARestart(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	r := s.start()
	first := s.transfer()
	require.Empty(t, s.scheduled(first).Spec.PriorityClassName)
	s.ends(first, testenv.Completed)
	before := r.metric("lateen_config_hash")

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
	require.Equal(t, 1, r.metric("lateen_priority_class_info", "consumer", "data-mover", "effective", class))
	require.NotEqual(t, before, r.metric("lateen_config_hash"))
	require.Equal(t, 2, r.metric("lateen_slots_limit"))
	require.Zero(t, r.metric("lateen_prepare_queue_limit"))

	problem := []string{"section", "loadConcurrency", "reason", "invalid_value"}
	s.configure(`{"loadConcurrency":{"globalConfig":0}}`)
	require.Equal(t, corev1.EventTypeWarning, s.says("ConfigNotApplied", "the previous configuration stays in force").Type)
	require.Equal(t, []int{1, 1}, []int{r.metric("lateen_config_rejected"), r.metric("lateen_config_problems", problem...)})
	s.configure(`{}`)
	require.Eventually(t, func() bool { return r.metric("lateen_config_rejected") == 0 }, testenv.Patience, 10*time.Millisecond)
	require.Zero(t, r.metric("lateen_config_problems", problem...))
	reads := s.requests(cluster.Query{Verbs: []string{"get"}, Resources: []string{"configmaps"}, Name: fixture.ConfigMap})
	require.Len(t, reads, 1, "only the start reads it")
}
