// Package metrics exports an agent's metrics to Prometheus. It only counts: it sends no request and decides nothing.
package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metrics holds the metrics of one agent; each agent has its own registry.
type Metrics struct {
	factory factory
	node    string

	classFallbacks  *prometheus.CounterVec
	classInfo       *prometheus.GaugeVec
	configFallbacks *prometheus.CounterVec
	configProblems  *prometheus.GaugeVec
	configHash      *prometheus.GaugeVec
	configRejected  *prometheus.GaugeVec
	finished        *prometheus.CounterVec
	phaseDuration   *prometheus.HistogramVec
	bytesMoved      *prometheus.CounterVec
	moverRestarts   *prometheus.CounterVec

	velero   veleroMetrics
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	queues   *queues
}

// phaseBuckets returns buckets in seconds, from an imperceptible phase to the longest wait that Velero allows by
// default.
func phaseBuckets() []float64 {
	return []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400}
}

// New registers all metrics of the agent of a node.
func New(registry prometheus.Registerer, version, node string) *Metrics {
	f := newFactory(registry)
	f.gauge("lateen_build_info", "Version of Lateen and of Go; always 1.", "version", "goversion").WithLabelValues(version, runtime.Version()).Set(1)
	f.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &Metrics{
		factory:         f,
		node:            node,
		classFallbacks:  f.counter("lateen_priority_class_fallbacks_total", "Times that a configured priority class was not used, by consumer and reason.", "consumer", "reason"),
		classInfo:       f.gauge("lateen_priority_class_info", "The configured priority class and the one in force, by consumer; always 1.", "consumer", "configured", "effective"),
		configFallbacks: f.counter("lateen_config_fallbacks_total", "Reported configuration problems, by section and reason.", "section", "reason"),
		configProblems:  f.gauge("lateen_config_problems", "Current configuration problems, by section and reason.", "section", "reason"),
		configHash:      f.gauge("lateen_config_hash", "Hash of the effective configuration, without what differs between nodes."),
		configRejected:  f.gauge("lateen_config_rejected", "1 if an edit of the node-agent ConfigMap was rejected and the previous configuration is in force, otherwise 0."),
		finished:        f.counter("lateen_transfers_finished_total", "Transfers that reached a terminal phase, by kind, phase and reason.", "kind", "phase", "reason"),
		bytesMoved:      f.counter("lateen_bytes_moved_total", "Bytes of completed transfers, by kind.", "kind"),
		moverRestarts:   f.counter("lateen_mover_restarts_total", "Lost movers that were replaced, by kind and reason.", "kind", "reason"),
		phaseDuration:   f.histogram("lateen_transfer_phase_duration_seconds", "Duration of transfer phases, by kind and phase.", phaseBuckets(), "kind", "phase"),

		velero:   newVeleroMetrics(f, node),
		requests: f.counter("rest_client_requests_total", "Requests to the API server, by method and status code.", "method", "code"),
		latency: f.histogram("rest_client_request_duration_seconds", "Latency of requests to the API server, by verb.",
			prometheus.ExponentialBuckets(.001, 4, 8), "verb"), // as in Kubernetes, where the counter has "method"
		queues: newQueues(f),
	}
}
