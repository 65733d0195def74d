package startup

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Load reads the whole configuration within Options.StartupTimeout. Its error is one line for an operator. It states
// what keeps the agent from starting, and the fix. A limitation that still allows a start is a Problem instead.
func Load(ctx context.Context, client kubernetes.Interface, options Options, clock clock.Clock) (*Startup, error) {
	l := loader{
		client: client, options: options, budget: newBudget(clock, options.StartupTimeout),
		daemonSets: map[string]*corev1.PodTemplateSpec{}, deployments: map[string]*appsv1.Deployment{},
	}
	startup := &Startup{PodsDir: objects.DefaultPodsDir}
	l.agents = &startup.Agents
	for _, step := range []func(context.Context, *Startup) error{
		l.readNode, l.checkResources, l.readConfigMap, l.readTemplates, l.findMaintenance, l.readRepository, l.checkCache, l.checkCopies,
		l.resolvePriority, l.enforceStrict, warnOfPreemption,
	} {
		if err := step(ctx, startup); err != nil {
			return nil, err
		}
	}
	return startup, nil
}

func (l loader) readNode(ctx context.Context, startup *Startup) error {
	node, err := get(ctx, l, object{resource: "nodes", name: l.options.NodeName}, l.client.CoreV1().Nodes().Get)
	if err != nil {
		return err
	}
	if node == nil {
		return fmt.Errorf("find node %s: it does not exist; set NODE_NAME to spec.nodeName by the downward API", l.options.NodeName)
	}
	os := corev1.OSName(cmp.Or(node.Labels[corev1.LabelOSStable], string(corev1.Linux)))
	startup.Node = Node{Name: node.Name, Labels: node.Labels, OS: os}
	return nil
}

// checkResources requires that the API server serves Velero's custom resources. A watch on a resource that is not
// served never starts.
func (l loader) checkResources(ctx context.Context, _ *Startup) error {
	served := map[string][]string{}
	for _, kind := range api.Kinds() {
		version := kind.GVK.GroupVersion().String()
		if _, known := served[version]; !known {
			resources, err := l.served(ctx, version)
			if err != nil {
				return err
			}
			served[version] = resources
		}
		if !slices.Contains(served[version], kind.Resource) {
			return fmt.Errorf("find %s in %s: Velero's CRDs are not installed; run velero install --crds-only", kind.Resource, version)
		}
	}
	return nil
}

// served lists the resources of a group version; none if it does not exist.
func (l loader) served(ctx context.Context, version string) ([]string, error) {
	var names []string
	err := l.budget.retry(ctx, func(context.Context) error {
		list, err := l.client.Discovery().ServerResourcesForGroupVersion(version)
		if err != nil {
			return err
		}
		for _, resource := range list.APIResources {
			names = append(names, resource.Name)
		}
		return nil
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, object{resource: "API resources", name: version}.explain(err, l.options.StartupTimeout)
	}
	return names, nil
}

func (l loader) readConfigMap(ctx context.Context, startup *Startup) error {
	startup.Config = config.Defaults()
	if l.options.NodeAgentConfigMap == "" {
		return nil
	}
	what, found, err := l.configMap(ctx, l.options.NodeAgentConfigMap)
	if err != nil {
		return err
	}
	startup.ConfigMap = found
	if found == nil {
		startup.parsed = []config.Problem{config.NoConfigMap(config.SectionConfigMap, what.namespace, what.name)}
	} else {
		startup.Config, startup.parsed = config.Parse(found.Data, startup.Node.Labels)
		what.setPaths(startup.parsed)
	}
	startup.Problems, startup.written = slices.Clone(startup.parsed), startup.Config
	if cache := startup.Config.Movers.Cache; cache != nil {
		startup.written.Movers.Cache = new(*cache) // readRepository changes its limit
	}
	return nil
}

// enforceStrict runs after every step that may find a setting that cannot be used, or fall back.
func (l loader) enforceStrict(_ context.Context, startup *Startup) error {
	if !l.options.StrictConfig {
		return nil
	}
	var lines []string
	for _, problem := range startup.Problems {
		lines = append(lines, problem.String())
	}
	// without a configured class, a Problem already states the reason
	if class := startup.Priority; class.FallsBack() && class.Configured != "" {
		lines = append(lines, string(config.SectionPriorityClassName)+": "+class.Message)
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New("not starting because of --strict-config: " + strings.Join(lines, "; "))
}

func (l loader) resolvePriority(ctx context.Context, startup *Startup) error {
	if reason, message := unreadableClass(startup.Problems); reason != "" {
		startup.Priority = priority.Unresolved("", reason, message)
		return nil
	}
	startup.Priority = priority.Resolve(ctx, startup.Config.PriorityClassName, l.class)
	return nil
}

// warnOfPreemption adds the Problem of a class that preempts. The class is in force, so --strict-config accepts it.
func warnOfPreemption(_ context.Context, startup *Startup) error {
	found := Preemption(startup.Priority)
	startup.parsed, startup.Problems = append(startup.parsed, found...), append(startup.Problems, found...)
	return nil
}

// Preemption returns the Problem of a class in force that preempts, if it does.
func Preemption(class priority.Resolution) []config.Problem {
	if !class.Preempts {
		return nil
	}
	return []config.Problem{PreemptingClass(class.Effective)}
}

// PreemptingClass returns the Problem of a priority class of movers that preempts. The mover of a pod volume is pinned to the
// node of that pod. If the node is full, the scheduler preempts the pods there that have a lower priority, and may
// choose the very pod whose volume the mover reads or writes.
func PreemptingClass(name string) config.Problem {
	return config.Problem{
		Section: config.SectionPriorityClassName, Path: string(config.SectionPriorityClassName), Reason: config.Risky, Message: fmt.Sprintf(
			"movers of PriorityClass %q can preempt the pod whose volume they back up or restore; name a class with preemptionPolicy: Never", name),
	}
}

// class is a priority.Getter that retries within the budget.
func (l loader) class(ctx context.Context, name string) (found *schedulingv1.PriorityClass, err error) {
	err = l.budget.retry(ctx, func(ctx context.Context) (err error) {
		found, err = l.client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return found, err
}

// unreadableClass returns why the configured priority class is unknown; empty if it is known.
func unreadableClass(problems []config.Problem) (priority.Reason, string) {
	for _, problem := range problems {
		switch {
		case !problem.Reason.Invalidates():
		case problem.Section == config.SectionPriorityClassName:
			return priority.ConfigInvalid, problem.String()
		case problem.Section != config.SectionConfigMap:
		case problem.Reason == config.Missing:
			return priority.ConfigMissing, problem.String()
		case problem.Reason == config.Empty:
			return priority.ConfigEmpty, problem.String()
		default:
			return priority.ConfigInvalid, problem.String()
		}
	}
	return "", ""
}

type loader struct {
	client  kubernetes.Interface
	options Options
	budget  budget
	// the workloads read so far by name; nil for a missing one
	daemonSets  map[string]*corev1.PodTemplateSpec
	deployments map[string]*appsv1.Deployment
	agents      *int // sums up what their DaemonSets want
}

// get reads one object within the budget; nil if it does not exist.
func get[T any](ctx context.Context, l loader, what object, read func(ctx context.Context, name string, options metav1.GetOptions) (*T, error)) (*T, error) {
	var found *T
	err := l.budget.retry(ctx, func(ctx context.Context) (err error) {
		found, err = read(ctx, what.name, metav1.GetOptions{})
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, what.explain(err, l.options.StartupTimeout)
	}
	return found, nil
}

// configMap reads a ConfigMap in Velero's namespace; nil if it does not exist.
func (l loader) configMap(ctx context.Context, name string) (object, *corev1.ConfigMap, error) {
	what := object{resource: "configmaps", namespace: l.options.Namespace, name: name}
	found, err := get(ctx, l, what, l.client.CoreV1().ConfigMaps(what.namespace).Get)
	return what, found, err
}

// Startup is everything that an agent reads before it starts. It is immutable; Reload returns its successor after an edit
// of the node-agent ConfigMap.
type Startup struct {
	Config    config.Config
	Problems  []config.Problem  // settings that could not be used
	ConfigMap *corev1.ConfigMap // of the node-agent, as read at the start; nil if there is none
	// base of the mover pods; always for linux, for windows if agents run there
	Templates map[corev1.OSName]objects.Template
	PodsDir   string              // the kubelet's, on the host
	Agents    int                 // number of nodes that should have an agent
	Node      Node                // of the agent
	Priority  priority.Resolution // of the movers' priority class

	MaintenanceConfigMap string  // of maintenance jobs; read again for each job
	MaintenanceNamedBy   NamedBy // the workload whose flag names it; empty if none does

	server  *appsv1.Deployment // of Velero; nil if it was not found, or was not needed
	written config.Config      // as the ConfigMap says, before the cluster is checked for what it names
	parsed  []config.Problem   // those of the node-agent ConfigMap itself
}

// Settings returns the effective settings of movers and their volumes.
func (s *Startup) Settings() objects.Settings {
	settings := s.Config.Movers
	settings.PriorityClass = s.Priority.Effective
	return settings
}

// Node is the agent's view of its node.
type Node struct {
	Name   string
	Labels map[string]string
	OS     corev1.OSName // linux if the node has no such label, as in Velero
}

// NamedBy is the workload whose flag names the ConfigMap of maintenance jobs: NamedByAgents, or the Deployment of Velero's
// server, such as "Deployment velero".
type NamedBy string

// NamedByAgents is the DaemonSet of the agents.
const NamedByAgents NamedBy = "DaemonSet " + api.DaemonSetName

const (
	firstDelay     = 200 * time.Millisecond
	longestDelay   = 2 * time.Second
	attemptTimeout = 10 * time.Second // a hanging connection must not use up the whole budget
)

// budget is the time that all reads before the start share.
type budget struct {
	clock clock.Clock
	ends  time.Time
}

func newBudget(clock clock.Clock, total time.Duration) budget {
	return budget{clock: clock, ends: clock.Now().Add(total)}
}

// Retry repeats a request of the start-up until it has a final answer, for Options.StartupTimeout at most. It returns the
// last error.
func Retry(ctx context.Context, options Options, clock clock.Clock, attempt func(context.Context) error) error {
	return newBudget(clock, options.StartupTimeout).retry(ctx, attempt)
}

// retry attempts at least once, until the result is final or the budget is used up. It then returns the last error.
func (b budget) retry(ctx context.Context, attempt func(context.Context) error) error {
	for delay := firstDelay; ; delay = min(2*delay, longestDelay) {
		bounded, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := attempt(bounded)
		cancel()
		if err == nil || !transient(err) {
			return err
		}
		left := b.ends.Sub(b.clock.Now())
		if left <= 0 {
			return err
		}
		// Half of the delay is random, because the agents of all nodes may start at the same time.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.clock.After(min(wait.Jitter(delay/2, 1), left)):
		}
	}
}

// transient reports whether another attempt may succeed: after no answer, 5xx, or too many requests.
func transient(err error) bool {
	var status apierrors.APIStatus
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &status):
		code := status.Status().Code
		return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
	case errors.Is(err, context.Canceled), errors.As(err, &certificate):
		return false
	default:
		return true
	}
}

// object identifies the object of a GET.
type object struct {
	group, resource string
	namespace, name string // namespace is empty for cluster-scoped objects
}

// String returns text such as "configmaps velero/node-agent-config".
func (o object) String() string {
	if o.namespace == "" {
		return o.resource + " " + o.name
	}
	return o.resource + " " + o.namespace + "/" + o.name
}

// explain turns an error of a GET into one line with its cause and fix.
func (o object) explain(err error, timeout time.Duration) error {
	var certificate *tls.CertificateVerificationError
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("get %s: API server rejected the credentials, check --kubeconfig and --kubecontext, or the token of the ServiceAccount: %w", o, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("get %s: not allowed, add {apiGroups: [%q], resources: [%s], verbs: [get]} to the agent's Role or ClusterRole: %w", o, o.group, o.resource, err)
	case errors.As(err, &certificate):
		return fmt.Errorf("get %s: certificate of the API server is not trusted, check the certificate authority in the kubeconfig: %w", o, err)
	case transient(err):
		return fmt.Errorf("get %s: no response from the API server within %s, check that it is running and reachable, or raise --startup-timeout: %w", o, timeout, err)
	default:
		return fmt.Errorf("get %s: %w", o, err)
	}
}

// setPaths sets the object's name as the path of Problems that concern the whole object.
func (o object) setPaths(problems []config.Problem) {
	for i, problem := range problems {
		problems[i].Path = cmp.Or(problem.Path, o.String())
	}
}

// hashBytes is how much of the hash a metric can hold: every integer of 48 bits is an exact float64.
const hashBytes = 6

// Hash returns a hash of the effective configuration: flags, ConfigMaps, and the templates of movers. It leaves out what differs
// between nodes, so equal agents have equal hashes. lateen_priority_class_info has the class in force, which changes by itself.
func (s *Startup) Hash(options Options) (uint64, error) {
	options.NodeName, options.PodUID, options.PodName = "", "", ""
	effective := s.Config
	effective.Concurrency = 0 // that of the node; NodeRules has the rules of all nodes
	text, err := json.Marshal([]any{options, effective, s.Templates, s.MaintenanceConfigMap})
	if err != nil {
		return 0, fmt.Errorf("encode configuration: %w", err)
	}
	sum := sha256.Sum256(text)
	return binary.BigEndian.Uint64(append(make([]byte, 8-hashBytes), sum[:hashBytes]...)), nil
}
