package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConfirm(t *testing.T) {
	for answer, want := range map[string]string{"y\n": "", " Yes \n": "", "y": "", "n\n": "not confirmed", "\n": "not confirmed", "": "not confirmed"} {
		var out bytes.Buffer
		err := Prompt{In: strings.NewReader(answer), Out: &out}.Confirm(t.Context(), "Do it?")
		require.Equal(t, "Do it? [y/N] \n", out.String())
		if want == "" {
			require.NoError(t, err, "%q", answer)
		} else {
			require.EqualError(t, err, want, "%q", answer)
		}
	}
}

func TestForceSkipsThePrompt(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Prompt{In: strings.NewReader("n\n"), Out: &out, Force: true}.Confirm(t.Context(), "Do it?"))
	require.Empty(t, out.String())
}

func TestAnInterruptEndsThePrompt(t *testing.T) {
	never, hold := io.Pipe() // a terminal without input
	defer hold.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	require.EqualError(t, Prompt{In: never, Out: io.Discard}.Confirm(ctx, "Do it?"), "interrupted")
}

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

func TestTheLabelOfALongNameIsThatOfVelero(t *testing.T) {
	name := strings.Repeat("n", 64)
	require.Equal(t, strings.Repeat("n", 57)+"ce068a", LabelValue(name))
	require.Equal(t, name[:63], LabelValue(name[:63]))
}
