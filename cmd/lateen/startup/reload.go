package startup

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Reload is the effect of a changed node-agent ConfigMap on a running agent.
type Reload struct {
	InForce  *Startup             // from now on; nil if the edit was rejected, so that the previous one stays in force
	Problems []config.Problem     // of the changed ConfigMap, and of everything that was read at the start
	Added    []config.Problem     // those that the previous configuration did not have; all of a rejected edit
	Applied  []string             // fields that changed and are in force
	Pending  []string             // fields that changed and need a restart
	Resolved *priority.Resolution // of the movers' class, if it was resolved again
}

// Reload evaluates a changed node-agent ConfigMap; nil was deleted. It rejects an edit with a value that cannot be used
// as a whole: at the start, the default of that value is better than no agent; later, the previous value is better than
// the default. It reads the priority class again if its name has changed or it was not in force.
func (s *Startup) Reload(ctx context.Context, client kubernetes.Interface, options Options, clock clock.Clock, found *corev1.ConfigMap) Reload {
	what := nodeAgentConfigMap(options)
	if found == nil {
		return s.rejected([]config.Problem{{
			Section: config.SectionConfigMap, Path: what.String(), Reason: config.Missing, Message: "was deleted; create it again",
		}})
	}
	edited, problems := config.Parse(found.Data, s.Node.Labels)
	what.setPaths(problems)
	if slices.ContainsFunc(problems, func(p config.Problem) bool { return options.StrictConfig || p.Reason.Invalidates() }) {
		return s.rejected(problems)
	}
	next := *s
	reload := Reload{InForce: &next}
	if name := edited.PriorityClassName; name != s.Priority.Configured || s.Priority.FallsBack() {
		l := loader{client: client, options: options, budget: newBudget(clock, options.StartupTimeout)}
		next.Priority = priority.Resolve(ctx, name, l.class)
		if options.StrictConfig && next.Priority.FallsBack() {
			return s.rejected(append(problems, config.Problem{
				Section: config.SectionPriorityClassName, Path: string(config.SectionPriorityClassName),
				Reason: config.InvalidValue, Message: next.Priority.Message,
			}))
		}
		reload.Resolved = &next.Priority
	}
	problems = append(problems, Preemption(next.Priority)...)
	edit := config.Apply(s.written, edited)
	next.Config, next.written, next.parsed = edit.Config, edit.Config, problems
	next.Config.Movers.Cache = s.Config.Movers.Cache // with its limit, and nil if it cannot be used
	next.Problems = s.withParsed(problems)
	reload.Problems, reload.Added = next.Problems, without(problems, s.parsed)
	reload.Applied, reload.Pending = edit.Applied, edit.Pending
	return reload
}

func (s *Startup) rejected(problems []config.Problem) Reload {
	return Reload{Problems: s.withParsed(problems), Added: problems}
}

// withParsed returns all Problems, with others of the node-agent ConfigMap.
func (s *Startup) withParsed(problems []config.Problem) []config.Problem {
	return slices.Concat(problems, without(s.Problems, s.parsed))
}

func without(all, these []config.Problem) []config.Problem {
	return slices.DeleteFunc(slices.Clone(all), func(p config.Problem) bool { return slices.Contains(these, p) })
}

func nodeAgentConfigMap(options Options) object {
	return object{resource: "configmaps", namespace: options.Namespace, name: options.NodeAgentConfigMap}
}
