package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlacementBlockers(t *testing.T) {
	node := func(name string, taints ...corev1.Taint) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}}, Spec: corev1.NodeSpec{Taints: taints}}
	}
	dedicated := corev1.Taint{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule}
	linux := map[string]string{"kubernetes.io/os": "linux"}
	notVirtual := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kubernetes.io/os", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"linux"}}}}},
	}}}
	for name, test := range map[string]struct {
		pod     corev1.PodSpec
		nodes   []corev1.Node
		message string
	}{
		"no node": {message: "the cluster has no node"},
		"a taint": {
			pod: corev1.PodSpec{NodeSelector: linux}, nodes: []corev1.Node{node("a", dedicated), node("b", dedicated), node("c", dedicated), node("d", dedicated)},
			message: "taint dedicated=db:NoSchedule is not tolerated (node a, b, c and 1 more)",
		},
		"a taint that is tolerated": {
			pod: corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}, nodes: []corev1.Node{node("a", dedicated)},
			message: "all nodes are eligible now",
		},
		"taints that every DaemonSet tolerates, or that keep nothing off": {
			nodes:   []corev1.Node{node("a", corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule})},
			message: "all nodes are eligible now",
		},
		"a selector and a taint": {
			pod: corev1.PodSpec{NodeSelector: map[string]string{"disk": "ssd"}}, nodes: []corev1.Node{node("a", dedicated), {ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{"disk": "ssd"}}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{dedicated}}}},
			message: "node selector disk=ssd does not match (node a); taint dedicated=db:NoSchedule is not tolerated (node b)",
		},
		"an affinity": {
			pod: corev1.PodSpec{Affinity: notVirtual}, nodes: []corev1.Node{node("a")},
			message: "required node affinity does not match (node a)",
		},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.message, formatBlockers(test.pod, test.nodes)) })
	}
}
