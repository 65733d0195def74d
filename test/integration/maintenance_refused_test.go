package integration

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
)

func TestWhateverTheClusterDoesToAJobIsWrittenDown(t *testing.T) {
	happening(t, map[string]trouble{
		"its node is drained": {
			before: func(*site) {},
			happens: func(s *site) {
				s.podOfJob()
				s.jobsEnd(node.Result{}, 0)
				s.drain(s.node, s.Namespace)
				s.cordon(s.node, false)
			},
			runs: []string{" ", ""}, jobs: 2, // why, unless its pod is gone before anybody has read that
		},
		"a limit of containers lets no pod in, until it is lifted": {
			before: func(s *site) {
				limits(corev1.LimitTypeContainer, corev1.ResourceMemory)(s)
				s.jobsEnd(node.Result{}, 0)
			},
			config: func(s *site) map[string]string {
				return map[string]string{"global": s.pinned(`"podResources":{"memoryLimit":"1Gi"}`)}
			},
			after: func(s *site) {
				require.NoError(s, s.Kube.CoreV1().LimitRanges(s.Namespace).Delete(s.soon(), "small", metav1.DeleteOptions{}))
			},
			runs: []string{"maximum memory usage per Container is 1Ki", ""}, jobs: 1,
		},
		"Pod Security lets no pod in, until it is lifted": {
			before: func(s *site) { secures("restricted")(s); s.jobsEnd(node.Result{}, 0) },
			after:  func(s *site) { s.secure("privileged") },
			runs:   []string{`violates PodSecurity "restricted:latest"`, ""}, jobs: 1,
		},
	})
}
