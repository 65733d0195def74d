package agent

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Package startup decides which versions these are.
func TestAgentsWarnOfVersionsThatWereNotTested(t *testing.T) {
	client, events := fake.NewClientset(), record.NewFakeRecorder(2)
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.99.1+eks"}
	templates := map[corev1.OSName]objects.Template{corev1.Linux: {Image: "velero/velero:v1.99.0"}}
	p := &assembly{recorder: events, clients: &clients{kube: client}, startup: &startup.Startup{Templates: templates}}
	p.reportVersions(t.Context(), &corev1.ObjectReference{})
	require.Len(t, events.Events, 2)
	const remedy = "; use a newer Lateen, or test a backup and a restore first"
	require.Equal(t, "Warning VeleroUntested Velero v1.99.0 is newer than 1.18, the newest version tested with Lateen"+remedy, <-events.Events)
	require.Equal(t, "Warning KubernetesUntested Kubernetes v1.99.1+eks is newer than 1.37, the newest version tested with Lateen"+remedy, <-events.Events)
	templates[corev1.Linux] = objects.Template{Image: "velero/velero:v1.18.3"}
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.36.3"}
	p.reportVersions(t.Context(), &corev1.ObjectReference{})
	require.Empty(t, events.Events)
}

// Defect D36: Problems were informational and got lost at --log-level=warning.
func TestAProblemIsAWarning(t *testing.T) {
	var out bytes.Buffer
	logger := logr.FromSlogHandler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})).WithValues("controller", "maintenance")
	ctx := klog.NewContext(t.Context(), logger)
	klog.FromContext(ctx).Info("nothing of note")
	registry := prometheus.NewPedanticRegistry()
	p, _, events, _ := agentOf(t, &classes{}, registry)
	p.warnOfConfig(ctx, []config.Problem{{Section: config.SectionPodLabels, Path: "podLabels.team", Reason: config.WrongType, Message: "a number"}})
	require.InDelta(t, 1, sums(t, registry)["lateen_config_fallbacks_total"], 0)
	require.Contains(t, <-events.Events, "Warning ConfigProblem podLabels.team")
	require.Contains(t, out.String(), `level=WARN msg="Found configuration problem" controller=maintenance section=podLabels path=podLabels.team reason=wrong_type message="a number"`)
	require.NotContains(t, out.String(), "nothing of note")
	p.class.set(ctx, priority.Fallback("low", priority.NotFound))
	require.Contains(t, out.String(), `level=WARN msg="Priority class is not in force, data movers run without one" controller=maintenance configured=low reason=not_found`)
}

func TestReportOnceEventsAreKeptOncePerTransfer(t *testing.T) {
	client := fake.NewClientset()
	requests := make(chan struct{}, 10)
	client.PrependReactor("*", "events", func(action clienttesting.Action) (handled bool, answer runtime.Object, err error) {
		defer func() { requests <- struct{}{} }()
		return clienttesting.ObjectReaction(client.Tracker())(action)
	})

	for _, node := range []string{"n1", "n2"} {
		events, flush := newRecorder(context.Background(), client, startup.Options{Namespace: "velero", NodeName: node})
		for _, uid := range []types.UID{"u1", "u2"} {
			about := &corev1.ObjectReference{Kind: "DataDownload", Namespace: "velero", Name: "d-" + string(uid), UID: uid}
			events.Event(about, corev1.EventTypeNormal, reconcile.EventForeign, "for another one")
			events.Event(about, corev1.EventTypeWarning, reconcile.EventCleanUpWaits, "for the kubelet")
			events.Event(about, corev1.EventTypeWarning, reconcile.EventCleanUpWaits, "for the driver")
			events.Event(about, corev1.EventTypeNormal, reconcile.EventCompleted, "on "+node)
		}
		for range 8 {
			<-requests
		}
		flush()
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "velero"}, Reason: reconcile.EventForeign, Message: "for another one"}
	_, err := onceSink{&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("velero")}}.Create(event)
	require.NoError(t, err)
	require.Empty(t, event.Name, "the caller logs and retries the event that it has")
	kept, err := client.CoreV1().Events("velero").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	reasons := map[string]int{}
	for _, event := range kept.Items {
		reasons[event.Reason]++
	}
	require.Equal(t, map[string]int{reconcile.EventForeign: 3, reconcile.EventCleanUpWaits: 4, reconcile.EventCompleted: 4}, reasons)
}

func TestEveryKindHasAQueue(t *testing.T) {
	velero, caches := cachesOf(t, fake.NewClientset())
	p := &assembly{Options: Options{Clock: clock.RealClock{}, Metrics: metrics.New(prometheus.NewRegistry(), "v1", "n1")}, clients: &clients{velero: velero}, caches: caches}
	var queues []string
	kinds := p.kinds(reconcile.Dependencies{})
	for _, queue := range kinds.all {
		queues = append(queues, queue.name())
	}
	require.Equal(t, kindNames(), queues)
	require.Equal(t, api.DataUpload().Name, kinds.uploads.name())
}

func TestSeriesOfEveryKindStartAtZero(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	countFromZero(metrics.New(registry, "v1", "n1"))
	text := exposition(t, registry)
	for _, kind := range api.Kinds() {
		for _, name := range []string{"lateen_transfers_finished_total", "lateen_bytes_moved_total", "lateen_mover_restarts_total"} {
			require.Contains(t, text, name+`{kind="`+kind.Name+`"`)
		}
	}
}

func TestMaintenanceProblemsAreSetAndCleared(t *testing.T) {
	global := config.Problem{Section: config.SectionMaintenance, Path: "global", Reason: config.InvalidValue}
	own := config.Problem{Section: config.SectionMaintenance, Path: "one", Reason: config.UnknownField}
	repositories := map[string]bool{"velero/one": true, "velero/two": true}
	exists := func(key string) bool { return repositories[key] }
	current := jobProblems{}

	require.Equal(t, []config.Problem{global, own}, current.replace("velero/one", []config.Problem{global, own}, exists))
	require.Empty(t, current.replace("velero/two", []config.Problem{global}, exists), "it was reported of another repository")
	require.ElementsMatch(t, []config.Problem{global, own}, current.all())

	require.Empty(t, current.replace("velero/one", nil, exists), "corrected")
	require.Equal(t, []config.Problem{global}, current.all(), "the job of the other repository uses it")
	require.Equal(t, []config.Problem{own}, current.replace("velero/one", []config.Problem{own}, exists), "it is there again")

	delete(repositories, "velero/two")
	require.Empty(t, current.replace("velero/one", nil, exists))
	require.Empty(t, current.all(), "nothing counts of a repository that does not exist")
}

func TestAProblemOfJobsIsReportedOnceAndExported(t *testing.T) {
	registry, events := prometheus.NewRegistry(), record.NewFakeRecorder(2)
	p := jobPlanner{problems: jobProblems{}, exists: func(string) bool { return true }}
	p.assembly = &assembly{Options: Options{Metrics: metrics.New(registry, "v1", "n1")}, recorder: events}
	problem := config.Problem{Section: config.SectionMaintenance, Path: "global", Reason: config.InvalidValue}
	for _, name := range []string{"one", "two"} {
		p.reportProblems(t.Context(), &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{Name: name}}, []config.Problem{problem})
	}
	require.Len(t, events.Events, 1)
	require.Contains(t, <-events.Events, "Warning MaintenanceConfigProblem global: ")
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(
		"# HELP lateen_config_fallbacks_total Reported configuration problems, by section and reason.\n# TYPE lateen_config_fallbacks_total counter\n"+
			`lateen_config_fallbacks_total{reason="invalid_value",section="repoMaintenance"} 1`+"\n"), "lateen_config_fallbacks_total"))
	shown, err := testutil.GatherAndCount(registry, "lateen_config_problems")
	require.NoError(t, err)
	require.Len(t, config.Reasons(), shown)
}

// TestMetricsOfVeleroFollowThePhases plays each change of a phase that Velero's own agent counts, and each that it does not.
func TestMetricsOfVeleroFollowThePhases(t *testing.T) {
	registry := prometheus.NewRegistry()
	velero, caches := cachesOf(t, fake.NewClientset())
	a := &assembly{Options: Options{Metrics: metrics.New(registry, "v1", "n1")}, clients: &clients{velero: velero}, caches: caches}
	kinds := a.kinds(reconcile.Dependencies{})
	backup := &velerov1.PodVolumeBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", OwnerReferences: []metav1.OwnerReference{{Name: "nightly", Controller: new(true)}}},
		Spec:       velerov1.PodVolumeBackupSpec{BackupStorageLocation: "default", Pod: corev1.ObjectReference{Namespace: "app"}, UploaderType: "kopia"},
	}
	states := map[transfer.Phase]transfer.State{}
	for _, phase := range transfer.Phases() {
		states[phase] = transfer.State{Phase: phase, StartedAt: time.Unix(100, 0), CompletedAt: time.Unix(103, 0)}
	}
	for _, change := range [][2]transfer.Phase{
		{transfer.New, transfer.Accepted}, {transfer.Accepted, transfer.Prepared}, {transfer.Prepared, transfer.Prepared},
		{transfer.Prepared, transfer.InProgress}, {transfer.InProgress, transfer.InProgress}, {transfer.InProgress, transfer.Canceling},
		{transfer.Canceling, transfer.Canceled}, {transfer.InProgress, transfer.Failed}, {transfer.InProgress, transfer.Completed},
	} {
		before, after := states[change[0]], states[change[1]]
		kinds.all[0].(*kindController[*velerov1.PodVolumeBackup]).transfers.OnUpdate(backup, before, after)
		kinds.uploads.(*kindController[*velerov2alpha1.DataUpload]).transfers.OnUpdate(nil, before, after)
		kinds.all[3].(*kindController[*velerov2alpha1.DataDownload]).transfers.OnUpdate(nil, before, after)
	}
	want := map[string]float64{
		"podVolume_pod_volume_backup_enqueue_count": 1, "podVolume_pod_volume_backup_dequeue_count": 1,
		"podVolume_data_upload_success_total": 1, "podVolume_data_upload_failure_total": 1, "podVolume_data_upload_cancel_total": 1,
		"podVolume_data_download_success_total": 1, "podVolume_data_download_failure_total": 1, "podVolume_data_download_cancel_total": 1,
		"podVolume_pod_volume_operation_latency_seconds_gauge": 3,
	}
	found := sums(t, registry)
	maps.DeleteFunc(found, func(name string, _ float64) bool { return !strings.HasPrefix(name, "podVolume_") })
	require.Equal(t, want, found)
	require.Contains(t, exposition(t, registry), `_gauge{backupName="velero/nightly",node="n1",operation="b1-default-app-kopia-backup",pod_volume_backup="b1"} 3`)
}

func TestAJobWhoseClassAWebhookRemovesIsReported(t *testing.T) {
	registry, events, log := prometheus.NewRegistry(), record.NewFakeRecorder(1), &bytes.Buffer{}
	p := jobPlanner{assembly: &assembly{Options: Options{Metrics: metrics.New(registry, "v1", "n1")}, recorder: events}}
	ctx := klog.NewContext(t.Context(), logr.FromSlogHandler(slog.NewTextHandler(log, nil)))
	p.reportClass(ctx, &velerov1.BackupRepository{}, &batchv1.Job{}, priority.Resolution{Configured: "low", Effective: "low"})
	require.Contains(t, <-events.Events, `Warning PriorityClassNotInForce Maintenance job runs without priority class "low" (rejected)`)
	require.InDelta(t, 1, sums(t, registry)["lateen_priority_class_fallbacks_total"], 0)
	require.Contains(t, log.String(), `level=WARN msg="Priority class is not in force, created maintenance job without one" configured=low reason=rejected`)
	job := &batchv1.Job{}
	job.Spec.Template.Spec.PriorityClassName = "low"
	p.reportClass(ctx, &velerov1.BackupRepository{}, job, priority.Resolution{Configured: "low", Effective: "low"})
	require.Empty(t, events.Events)
	job.Spec.Template.Spec.PriorityClassName = "of the cluster's default"
	p.reportClass(ctx, &velerov1.BackupRepository{}, job, priority.Unresolved("", priority.Forbidden, ""))
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(
		"# HELP lateen_priority_class_info The configured priority class and the one in force, by consumer; always 1.\n# TYPE lateen_priority_class_info gauge\n"+
			`lateen_priority_class_info{configured="?",consumer="maintenance-job",effective=""} 1`+"\n"), "lateen_priority_class_info"))
}

// exposition returns the metrics of a registry as Prometheus reads them.
func exposition(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	return answer.Body.String()
}

// sums returns the counters and gauges of a registry by name, each the sum of its series.
func sums(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, family := range families {
		for _, series := range family.GetMetric() {
			if series.GetHistogram() == nil {
				all[family.GetName()] += series.GetCounter().GetValue() + series.GetGauge().GetValue()
			}
		}
	}
	return all
}
