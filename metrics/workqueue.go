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

func newQueues(f factory) *queues {
	buckets := prometheus.ExponentialBuckets(1e-5, 10, 8)
	return &queues{
		depth:      f.gauge("workqueue_depth", "Keys waiting for a worker.", "name"),
		unfinished: f.gauge("workqueue_unfinished_work_seconds", "Total duration of unfinished reconciles.", "name"),
		longest:    f.gauge("workqueue_longest_running_processor_seconds", "Duration of the longest unfinished reconcile.", "name"),
		adds:       f.counter("workqueue_adds_total", "Keys added.", "name"),
		retries:    f.counter("workqueue_retries_total", "Keys requeued after an error.", "name"),
		latency:    f.histogram("workqueue_queue_duration_seconds", "Time that keys wait for a worker.", buckets, "name"),
		work:       f.histogram("workqueue_work_duration_seconds", "Duration of reconciles.", buckets, "name"),
	}
}

// Workqueues returns the provider of workqueue metrics.
func (m *Metrics) Workqueues() workqueue.MetricsProvider {
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
