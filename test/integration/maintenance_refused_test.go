package integration

import (
	"testing"

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
	})
}
