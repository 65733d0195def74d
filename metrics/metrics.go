// Package metrics exports an agent's metrics to Prometheus. It only counts: it sends no request and decides nothing.
package metrics

import (
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/api"
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
	transferLimits  *prometheus.GaugeVec
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
		transferLimits:  f.gauge("lateen_transfer_limit", "Limit of transfers that are accepted and not moved yet, of a storage class or, without one, of the cluster; 0 for no limit.", "storage_class"),
		phaseDuration:   f.histogram("lateen_transfer_phase_duration_seconds", "Duration of transfer phases, by kind and phase.", phaseBuckets(), "kind", "phase"),

		velero:   newVeleroMetrics(f, node),
		requests: f.counter("rest_client_requests_total", "Requests to the API server, by method and status code.", "method", "code"),
		latency: f.histogram("rest_client_request_duration_seconds", "Latency of requests to the API server, by verb.",
			prometheus.ExponentialBuckets(.001, 4, 8), "verb"), // as in Kubernetes, where the counter has "method"
		queues: newQueues(f),
	}
}

// factory creates metrics that are registered.
type factory struct {
	prometheus.Registerer
	promauto.Factory
}

func newFactory(registry prometheus.Registerer) factory {
	return factory{registry, promauto.With(registry)}
}

func (f factory) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (f factory) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func (f factory) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// boolean returns the value of a gauge that is 1 or 0.
func boolean(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// Transport returns a RoundTripper that counts the requests of a client. The hooks of client-go exist once per
// process, so they could not tell the agents of a test apart.
func (m *Metrics) Transport(next http.RoundTripper, clk clock.PassiveClock) http.RoundTripper {
	return &transport{metrics: m, next: next, clock: clk}
}

type transport struct {
	metrics *Metrics
	next    http.RoundTripper
	clock   clock.PassiveClock
}

// RoundTrip implements http.RoundTripper. A request without an answer counts with the code "error".
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	began := t.clock.Now()
	response, err := t.next.RoundTrip(request)
	code := "error"
	if err == nil {
		code = strconv.Itoa(response.StatusCode)
	}
	t.metrics.requests.WithLabelValues(request.Method, code).Inc()
	t.metrics.latency.WithLabelValues(request.Method).Observe(t.clock.Since(began).Seconds())
	return response, err
}

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

// veleroMetrics have the names and labels of Velero's node-agent, so that dashboards keep working (Velero's
// pkg/metrics; velero-protocol 7).
type veleroMetrics struct {
	enqueued, dequeued *prometheus.CounterVec
	latency            *prometheus.HistogramVec
	latest             *prometheus.GaugeVec
	kept               *backupNames                      // that have series in latency and latest
	moved              map[string]*prometheus.CounterVec // DataUploads and DataDownloads, by kind and terminal phase
}

func newVeleroMetrics(f factory, node string) veleroMetrics {
	series := []string{"node", "operation", "backupName", "pod_volume_backup"}
	v := veleroMetrics{
		kept:     &backupNames{},
		enqueued: f.counter("podVolume_pod_volume_backup_enqueue_count", "PodVolumeBackups whose mover started.", "node"),
		dequeued: f.counter("podVolume_pod_volume_backup_dequeue_count", "PodVolumeBackups that completed.", "node"),
		latency:  f.histogram("podVolume_pod_volume_operation_latency_seconds", "Time from start to completion of a PodVolumeBackup.", veleroBuckets(), series...),
		latest:   f.gauge("podVolume_pod_volume_operation_latency_seconds_gauge", "Time from start to completion of a PodVolumeBackup.", series...),
	}
	v.moved = map[string]*prometheus.CounterVec{}
	for _, kind := range api.Kinds() {
		if kind.Metric == "" {
			continue
		}
		for phase, result := range map[string]string{"Completed": "success", "Failed": "failure", "Canceled": "cancel"} {
			count := f.counter("podVolume_"+kind.Metric+"_"+result+"_total", kind.GVK.Kind+"s that reached phase "+phase+".", "node")
			count.WithLabelValues(node)
			v.moved[kind.Name+" "+phase] = count
		}
	}
	v.enqueued.WithLabelValues(node) // both exist from the start, as in Velero
	v.dequeued.WithLabelValues(node)
	return v
}

// veleroBuckets returns the buckets of Velero's histograms, in seconds.
func veleroBuckets() []float64 {
	hour := time.Hour.Seconds()
	return []float64{60, 300, 600, 900, 1800, hour, 2 * hour, 3 * hour, 4 * hour}
}

// BackupStarted counts a PodVolumeBackup whose mover was started.
func (m *Metrics) BackupStarted() {
	m.velero.enqueued.WithLabelValues(m.node).Inc()
}

// keptBackups is the number of PodVolumeBackups whose series an agent keeps.
const keptBackups = 500

// BackupCompleted counts a completed PodVolumeBackup. Its series have the backup's name, as in Velero. Unlike
// Velero's, they do not stay for ever (W51): only those of the last backups do.
func (m *Metrics) BackupCompleted(operation, backup, name string, took time.Duration) {
	m.velero.keep(name)
	m.velero.dequeued.WithLabelValues(m.node).Inc()
	m.velero.latency.WithLabelValues(m.node, operation, backup, name).Observe(took.Seconds())
	m.velero.latest.WithLabelValues(m.node, operation, backup, name).Set(took.Seconds())
}

// backupNames are the PodVolumeBackups that have series, the oldest first.
type backupNames struct {
	lock  sync.Mutex
	names []string
}

// keep adds a PodVolumeBackup. It drops the series of the oldest one if there are too many.
func (v veleroMetrics) keep(name string) {
	v.kept.lock.Lock()
	defer v.kept.lock.Unlock()
	v.kept.names = append(v.kept.names, name)
	if len(v.kept.names) <= keptBackups {
		return
	}
	series := prometheus.Labels{"pod_volume_backup": v.kept.names[0]}
	v.kept.names = v.kept.names[1:]
	v.latency.DeletePartialMatch(series)
	v.latest.DeletePartialMatch(series)
}

// DataMoved counts a terminal DataUpload or DataDownload as Velero does.
func (m *Metrics) DataMoved(kind, phase string) {
	if count := m.velero.moved[kind+" "+phase]; count != nil {
		count.WithLabelValues(m.node).Inc()
	}
}
