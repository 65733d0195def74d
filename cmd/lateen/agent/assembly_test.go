package agent

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/objects"
)

// A node name may have 253 characters, a label value only 63.
func TestAnAgentSelectsTheMoversThatItHasMarked(t *testing.T) {
	for _, node := range []string{"node-1", strings.Repeat("n", 70) + ".example.com"} {
		selected, err := labels.Parse(Selectors(config.Options{NodeName: node}).CreatedLabels)
		require.NoError(t, err, node)
		require.True(t, selected.Matches(labels.Set(objects.OwnerLabels("uid", node))), "%s", selected)
	}
}
