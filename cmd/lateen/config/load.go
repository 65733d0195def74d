package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Load reads the whole configuration within Options.StartupTimeout. Its error is one line for an operator. It states
// what keeps the agent from starting, and the fix. A limitation that still allows a start is a Problem instead.
func Load(ctx context.Context, client kubernetes.Interface, options Options, clock clock.Clock) (*Startup, error) {
	l := loader{
		client: client, options: options, budget: newBudget(clock, options.StartupTimeout),
		workloads: map[workload]*corev1.PodTemplateSpec{},
	}
	startup := &Startup{}
	l.agents = &startup.Agents
	for _, step := range []func(context.Context, *Startup) error{
		l.readNode, l.checkResources, l.readConfigMap, l.readTemplates, l.findMaintenance, l.readRepository, l.checkCache, l.checkCopies,
		l.resolvePriority, l.enforceStrict,
	} {
		if err := step(ctx, startup); err != nil {
			return nil, err
		}
	}
	return startup, nil
}

func (l loader) readNode(ctx context.Context, startup *Startup) error {
	node, err := get(ctx, l, l.nodeObject(), l.client.CoreV1().Nodes().Get)
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
	startup.Config = configmap.Defaults()
	if l.options.NodeAgentConfigMap == "" {
		return nil
	}
	what, found, err := l.configMap(ctx, l.options.NodeAgentConfigMap)
	if err != nil {
		return err
	}
	startup.ConfigMap = found
	if found == nil {
		startup.parsed = []configmap.Problem{configmap.NoNodeAgent(what.namespace, what.name)}
	} else {
		startup.Config, startup.parsed = configmap.Parse(found.Data, startup.Node.Labels)
		what.setPaths(startup.parsed)
	}
	startup.Problems, startup.written = slices.Clone(startup.parsed), startup.Config
	if cache := startup.Config.Movers.Cache; cache != nil {
		startup.written.Movers.Cache = new(*cache) // readRepository changes its limit
	}
	return nil
}

// enforceStrict runs last, after every step that may add a Problem or fall back.
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
		lines = append(lines, string(configmap.SectionPriorityClassName)+": "+class.Message)
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

// class is a priority.Getter that retries within the budget.
func (l loader) class(ctx context.Context, name string) (found *schedulingv1.PriorityClass, err error) {
	err = l.budget.retry(ctx, func(ctx context.Context) (err error) {
		found, err = l.client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return found, err
}

// unreadableClass returns why the configured priority class is unknown; empty if it is known.
func unreadableClass(problems []configmap.Problem) (priority.Reason, string) {
	for _, problem := range problems {
		switch {
		case !problem.Reason.Invalidates():
		case problem.Section == configmap.SectionPriorityClassName:
			return priority.ConfigInvalid, problem.String()
		case problem.Section != configmap.SectionConfigMap:
		case problem.Reason == configmap.Missing:
			return priority.ConfigMissing, problem.String()
		case problem.Reason == configmap.Empty:
			return priority.ConfigEmpty, problem.String()
		default:
			return priority.ConfigInvalid, problem.String()
		}
	}
	return "", ""
}
