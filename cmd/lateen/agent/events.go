package agent

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// component names Lateen in Kubernetes Events.
const component = "lateen"

// Reasons of the Kubernetes Events on the agent's own pod.
const (
	EventPriorityClass = "PriorityClassNotInForce"
	EventConfig        = "ConfigProblem"
	EventVelero        = "VeleroUntested"
	EventKubernetes    = "KubernetesUntested"
)

type recorder = record.EventRecorder

// newRecorder sends Kubernetes Events in the background until flush is called.
func newRecorder(ctx context.Context, client kubernetes.Interface, options startup.Options) (recorder, func()) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(onceSink{&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events(options.Namespace)}})
	source := corev1.EventSource{Component: component, Host: options.NodeName}
	return broadcaster.NewRecorder(scheme.Scheme, source), broadcaster.Shutdown
}

// reportConfig reports once which parts of the configuration are not in force: as logs, metrics and Events.
func (a *assembly) reportConfig(ctx context.Context) {
	logger := klog.FromContext(ctx)
	a.warnOfConfig(ctx, a.startup.Problems)
	for _, section := range config.Sections() {
		a.showProblems(section, a.startup.Problems)
	}
	a.reportVersions(ctx, a.self())
	a.exportHash(ctx, a.startup)
	if a.Flags.MaintenanceConcurrency > 0 {
		logger.Info("Found ConfigMap of maintenance jobs", "configMap", a.startup.MaintenanceConfigMap, "namedBy", a.startup.MaintenanceNamedBy)
	}
	a.class.set(ctx, a.startup.Priority)
}

// warnOfConfig reports Problems as logs, metrics and Events.
func (a *assembly) warnOfConfig(ctx context.Context, problems []config.Problem) {
	for _, problem := range problems {
		warnOf(ctx, problem)
		a.Metrics.ConfigFallback(string(problem.Section), string(problem.Reason))
		a.recorder.Event(a.self(), corev1.EventTypeWarning, EventConfig, reconcile.EventMessage(problem.String()))
	}
}

func (a *assembly) exportHash(ctx context.Context, inForce *startup.Startup) {
	hash, err := inForce.Hash(a.Flags)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to hash the configuration")
		return
	}
	a.Metrics.ConfigHash(hash)
}

// reportMoverClass reports the priority class of movers, and why it is not in force.
func (a *assembly) reportMoverClass(ctx context.Context, class priority.Resolution) {
	logger := klog.FromContext(ctx)
	a.Metrics.PriorityClass(priority.DataMover, class.Shown(), class.Effective)
	a.own.set(api.AnnotationClassFallback, string(class.Reason))
	if !class.FallsBack() {
		logger.Info("Priority class of data movers", "configured", class.Configured, "effective", class.Effective, "message", class.Message)
		return
	}
	a.Metrics.PriorityClassFallback(priority.DataMover, string(class.Reason))
	warn(ctx, "Priority class is not in force, data movers run without one", "configured", class.Configured, "reason", class.Reason, "message", class.Message)
	a.recorder.Event(a.self(), corev1.EventTypeWarning, EventPriorityClass,
		reconcile.EventMessage(fmt.Sprintf("Data movers run without priority class %q (%s): %s", class.Configured, class.Reason, class.Message)))
}

// reportVersions warns if this version of Velero or Kubernetes was not tested with Lateen.
func (a *assembly) reportVersions(ctx context.Context, self *corev1.ObjectReference) {
	logger := klog.FromContext(ctx)
	image := a.startup.Templates[corev1.Linux].Image
	logger.Info("Found Velero", "image", image, "tested", startup.TestedVersions())
	a.reportUntested(ctx, self, EventVelero, startup.UntestedVelero(image))
	server, err := a.clients.kube.Discovery().ServerVersion()
	if err != nil {
		logger.Error(err, "Failed to get version of Kubernetes")
		return
	}
	logger.Info("Found Kubernetes", "version", server.GitVersion, "tested", startup.TestedKubernetes())
	a.reportUntested(ctx, self, EventKubernetes, startup.UntestedKubernetes(server.GitVersion))
}

// reportUntested logs what was not tested, and sends an Event; empty is nothing.
func (a *assembly) reportUntested(ctx context.Context, self *corev1.ObjectReference, reason, untested string) {
	if untested == "" {
		return
	}
	warn(ctx, "Version is not tested with this Lateen", "reason", reason, "message", untested)
	a.recorder.Event(self, corev1.EventTypeWarning, reason, untested+"; use a newer Lateen, or test a backup and a restore first")
}

// warn logs a warning. logr has no warning level, slog has. At --log-level=warning, an informational message gets lost.
func warn(ctx context.Context, message string, pairs ...any) {
	slog.New(logr.ToSlogHandler(klog.FromContext(ctx))).WarnContext(ctx, message, pairs...)
}

func warnOf(ctx context.Context, problem config.Problem) {
	warn(ctx, "Found configuration problem", "section", problem.Section, "path", problem.Path, "reason", problem.Reason, "message", problem.Message)
}

// self returns the agent's own pod, or the DaemonSet if the agent does not run in a pod of it.
func (a *assembly) self() *corev1.ObjectReference {
	if pod := a.ownPod(); pod != nil {
		return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	}
	return &corev1.ObjectReference{
		APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet",
		Namespace: a.Flags.Namespace, Name: api.DaemonSetName,
	}
}

// onceReasons returns the reasons of the Events that an object gets once with the same text, from any agent. Without that, each
// coordinator repeats them in its term, and each agent after a restart.
func onceReasons() []string { return []string{reconcile.EventForeign, reconcile.EventCleanUpWaits} }

// onceSink derives the name of an Event with one of these reasons from its object and text. The API server then rejects a second
// one.
type onceSink struct{ record.EventSink }

// Create implements record.EventSink.
func (o onceSink) Create(event *corev1.Event) (*corev1.Event, error) {
	if slices.Contains(onceReasons(), event.Reason) {
		event = event.DeepCopy()
		event.Name = fmt.Sprintf("%s.%s.%x", strings.ToLower(event.Reason), event.InvolvedObject.UID, sha256.Sum224([]byte(event.Message)))
	}
	return o.EventSink.Create(event)
}

// observe registers the metrics that are computed at each scrape.
func (a *assembly) observe(slots *capacity.Slots, kinds []kind) {
	a.Metrics.Slots(slots.Limit, slots.InUse)
	a.Metrics.Queue(a.startup.Config.PrepareQueueLength)
	a.Metrics.TransferLimits(a.startup.Config.Cluster, a.startup.Config.StorageClasses)
	a.Metrics.Transfers(func() []metrics.Count {
		var all []metrics.Count
		for _, k := range kinds {
			all = append(all, k.count()...)
		}
		return all
	})
}

// countFromZero initializes every series with 0 before the first event.
func countFromZero(meter *metrics.Metrics) {
	meter.Init(metrics.InitialLabels{
		Consumers:     priority.Consumers(),
		ClassReasons:  format(priority.Reasons()),
		Sections:      format(config.Sections()),
		ConfigReasons: format(config.Reasons()),
		Kinds:         kindNames(),
		LostReasons:   format(objects.LostReasons()),
		Ends:          terminalReasons(),
	})
}

func kindNames() []string {
	var names []string
	for _, kind := range api.Kinds() {
		names = append(names, kind.Name)
	}
	return names
}

func terminalReasons() []metrics.End {
	var all []metrics.End
	for phase, reasons := range transfer.TerminalReasons() {
		for _, reason := range reasons {
			all = append(all, metrics.End{Phase: string(phase), Reason: string(reason)})
		}
	}
	return all
}

// format converts named strings to label values.
func format[T ~string](named []T) []string {
	var plain []string
	for _, word := range named {
		plain = append(plain, string(word))
	}
	return plain
}

// jobProblems are the Problems of the maintenance jobs of each repository, by its key, as of the last read. The
// maintenance ConfigMap takes effect without a restart, so they change while an agent coordinates.
type jobProblems map[string][]config.Problem

// replace stores the Problems of a repository and drops repositories that no longer exist. It returns the Problems
// that no repository had before.
func (j jobProblems) replace(key string, read []config.Problem, exists func(key string) bool) (added []config.Problem) {
	maps.DeleteFunc(j, func(key string, _ []config.Problem) bool { return !exists(key) })
	before := j.all()
	j[key] = read
	return slices.DeleteFunc(slices.Clone(read), func(problem config.Problem) bool { return slices.Contains(before, problem) })
}

// all returns the Problems of every repository without duplicates.
func (j jobProblems) all() []config.Problem {
	var all []config.Problem
	for _, problems := range j {
		for _, problem := range problems {
			if !slices.Contains(all, problem) {
				all = append(all, problem)
			}
		}
	}
	return all
}

// showProblems sets the gauge of a section to its current Problems.
func (a *assembly) showProblems(section config.Section, problems []config.Problem) {
	counts := map[string]int{}
	for _, reason := range config.Reasons() {
		counts[string(reason)] = 0
	}
	for _, problem := range problems {
		if problem.Section == section {
			counts[string(problem.Reason)]++
		}
	}
	a.Metrics.ConfigProblems(string(section), counts)
}
