package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lateen-project/lateen/exposer/api"
)

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
