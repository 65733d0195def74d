package agent

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile"
)

func TestEveryKindHasAQueue(t *testing.T) {
	velero, err := informers.NewClientset(&rest.Config{Host: "http://127.0.0.1:1"})
	require.NoError(t, err)
	caches, err := informers.NewCaches(fake.NewClientset(), velero, informers.Selectors{Namespace: "velero", Node: "n1"})
	require.NoError(t, err)
	p := &assembly{Options: Options{Clock: clock.RealClock{}, Metrics: metrics.New(prometheus.NewRegistry(), "v1", "n1")}, clients: &clients{velero: velero}, caches: caches}
	var queues, table []string
	kinds := p.kinds(reconcile.Dependencies{})
	for _, queue := range kinds.all {
		queues = append(queues, queue.name())
	}
	for _, kind := range api.Kinds() {
		table = append(table, kind.Name)
	}
	require.Equal(t, table, queues)
	require.Equal(t, []string{api.PodVolumeRestore().Name, api.DataUpload().Name}, []string{kinds.restores.name(), kinds.uploads.name()})
}

func TestSeriesOfEveryKindStartAtZero(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	countFromZero(metrics.New(registry, "v1", "n1"))
	families, err := registry.Gather()
	require.NoError(t, err)
	kinds := map[string]map[string]bool{}
	for _, family := range families {
		for _, series := range family.GetMetric() {
			for _, label := range series.GetLabel() {
				if label.GetName() == "kind" {
					if kinds[family.GetName()] == nil {
						kinds[family.GetName()] = map[string]bool{}
					}
					kinds[family.GetName()][label.GetValue()] = true
				}
			}
		}
	}
	for _, kind := range api.Kinds() {
		for _, name := range []string{"lateen_transfers_finished_total", "lateen_bytes_moved_total", "lateen_mover_restarts_total"} {
			require.True(t, kinds[name][kind.Name], "%s of %s", name, kind.Name)
		}
	}
}
