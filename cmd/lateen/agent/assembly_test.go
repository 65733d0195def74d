package agent

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/capacity"
)

func TestOnlyAPrepareQueueReplacesThePaceOfPreparation(t *testing.T) {
	const slots, many = 2, 100
	for queue, want := range map[int]int{0: capacity.Ahead(slots), 1: many} {
		p := &assembly{startup: &config.Startup{Config: configmap.Config{
			Limits: configmap.Limits{Concurrency: slots, MaxConcurrency: slots, PrepareQueueLength: queue},
		}}}
		require.Equal(t, capacity.FixedPreparation(7), (&assembly{Options: Options{Prepared: 7}, startup: p.startup}).preparation())
		preparation, prepared := p.preparation(), 0
		for i := range many {
			if preparation.TryAcquire(true, types.UID(strconv.Itoa(i)), time.Unix(0, 0), func() {}) {
				prepared++
			}
		}
		require.Equal(t, want, prepared)
	}
}

// A node name may have 253 characters, a label value only 63.
func TestAnAgentSelectsTheMoversThatItHasMarked(t *testing.T) {
	for _, node := range []string{"node-1", strings.Repeat("n", 70) + ".example.com"} {
		selected, err := labels.Parse(Selectors(config.Options{NodeName: node}).CreatedLabels)
		require.NoError(t, err, node)
		require.True(t, selected.Matches(labels.Set(objects.OwnerLabels("uid", node))), "%s", selected)
	}
}
