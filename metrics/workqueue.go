package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
)

// queues holds the metrics of client-go's workqueues under the names of Kubernetes
// (k8s.io/component-base/metrics/prometheus/workqueue).
type queues struct {
	depth, unfinished, longest *prometheus.GaugeVec
	adds, retries              *prometheus.CounterVec
	latency, work              *prometheus.HistogramVec
}

func newQueues() *queues {
	buckets := prometheus.ExponentialBuckets(1e-5, 10, 8)
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"name"})
	}
	return &queues{
		depth:      gauge("workqueue_depth", "Keys waiting for a worker.", "name"),
		unfinished: gauge("workqueue_unfinished_work_seconds", "Total duration of unfinished reconciles.", "name"),
		longest:    gauge("workqueue_longest_running_processor_seconds", "Duration of the longest unfinished reconcile.", "name"),
		adds:       counter("workqueue_adds_total", "Keys added.", "name"),
		retries:    counter("workqueue_retries_total", "Keys requeued after an error.", "name"),
		latency:    histogram("workqueue_queue_duration_seconds", "Time that keys wait for a worker."),
		work:       histogram("workqueue_work_duration_seconds", "Duration of reconciles."),
	}
}

func (q *queues) collectors() []prometheus.Collector {
	return []prometheus.Collector{q.depth, q.unfinished, q.longest, q.adds, q.retries, q.latency, q.work}
}

// Workqueues returns the provider of workqueue metrics; nil for nil Metrics.
func (m *Metrics) Workqueues() workqueue.MetricsProvider {
	if m == nil {
		return nil
	}
	return m.queues
}

func (q *queues) NewDepthMetric(name string) workqueue.GaugeMetric {
	return q.depth.WithLabelValues(name)
}

func (q *queues) NewAddsMetric(name string) workqueue.CounterMetric {
	return q.adds.WithLabelValues(name)
}

func (q *queues) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return q.latency.WithLabelValues(name)
}

func (q *queues) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return q.work.WithLabelValues(name)
}

func (q *queues) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return q.unfinished.WithLabelValues(name)
}

func (q *queues) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return q.longest.WithLabelValues(name)
}

func (q *queues) NewRetriesMetric(name string) workqueue.CounterMetric {
	return q.retries.WithLabelValues(name)
}
