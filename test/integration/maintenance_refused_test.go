package integration

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
)

func TestWhateverTheClusterDoesToAJobIsWrittenDown(t *testing.T) {
	runJobFaults(t, map[string]jobFault{
		"its node is drained": {
			before: func(*env) {},
			happens: func(s *env) {
				s.podOfJob()
				s.jobsEnd(node.Result{}, 0)
				s.drain(s.node, s.Namespace)
				s.cordon(s.node, false)
			},
			runs: []string{" ", ""}, jobs: 2, // why, unless its pod is gone before anybody has read that
		},
		"a limit of containers lets no pod in, until it is lifted": {
			before: func(s *env) {
				limits(corev1.LimitTypeContainer, corev1.ResourceMemory)(s)
				s.jobsEnd(node.Result{}, 0)
			},
			config: func(s *env) map[string]string {
				return map[string]string{"global": s.pinned(`"podResources":{"memoryLimit":"1Gi"}`)}
			},
			after: func(s *env) {
				require.NoError(s, s.Kube.CoreV1().LimitRanges(s.Namespace).Delete(s.soon(), "small", metav1.DeleteOptions{}))
			},
			runs: []string{"maximum memory usage per Container is 1Ki", ""}, jobs: 1,
		},
		"Pod Security lets no pod in, until it is lifted": {
			before: func(s *env) { secures("restricted")(s); s.jobsEnd(node.Result{}, 0) },
			after:  func(s *env) { s.secure("privileged") },
			runs:   []string{`violates PodSecurity "restricted:latest"`, ""}, jobs: 1,
		},
	})
}
