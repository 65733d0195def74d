package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/api"
)

func TestAnAgentFindsItsOwnPod(t *testing.T) {
	pod := func(namespace, name, role string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{api.LabelRole: role}}}
	}
	old, own := pod("velero", "node-agent-old", api.RoleNodeAgent), pod("velero", "node-agent-new", api.RoleNodeAgent)
	deleting := old.DeepCopy()
	deleting.DeletionTimestamp = new(metav1.Now())
	for name, test := range map[string]struct {
		hostname string
		local    []*corev1.Pod
		want     *corev1.Pod
	}{
		"by its host name, beside another agent": {"node-agent-new", []*corev1.Pod{old, own, old}, own},
		"without its name, the only one":         {"elsewhere", []*corev1.Pod{pod("shop", "a", api.RoleNodeAgent), own, pod("velero", "b", "")}, own},
		"without its name, the one that stays":   {"elsewhere", []*corev1.Pod{deleting, own}, own},
		"and none outside of a cluster":          {"elsewhere", []*corev1.Pod{pod("velero", "b", "")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.Same(t, test.want, ownPodOf(test.local, config.Options{Namespace: "velero", PodName: test.hostname}))
		})
	}
}
