package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/rights"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

const (
	refuseWrites = "an admission policy refuses a write of agents"
	silenceEver  = "a node is silent for ever"
)

// drawPolicy lets an admission policy refuse one write of the agents in one of eight schedules, silences a node for ever in
// another, and starts agents with the arguments of Velero's in a third. It draws from a stream of its own.
func drawPolicy(plan *Plan) {
	const oneIn, first, steps, picks = 8, 20, 400, 10_000
	random := rand.New(rand.NewPCG(plan.Seed, policyStream))
	at, pick := first+random.IntN(steps), random.IntN(picks)
	switch random.IntN(oneIn) {
	case 0:
		plan.Faults = append(plan.Faults, Fault{Step: at, What: refuseWrites, Pick: pick})
	case 1:
		plan.Faults = append(plan.Faults, Fault{Step: at, What: silenceEver, Pick: pick})
		plan.Faults = append(plan.Faults, Fault{Step: first + random.IntN(steps), What: cancel, Pick: pick})
	case 2: //nolint:mnd // the third of these schedules
		plan.Adopted = true
	}
	slices.SortStableFunc(plan.Faults, func(a, b Fault) int { return a.Step - b.Step })
}

// refusable are the writes of agents that an admission policy can refuse.
func refusable() []rights.Grant {
	return slices.DeleteFunc(rights.Grants(deploy.NamespaceRules(), deploy.ClusterRules()), func(g rights.Grant) bool {
		return slices.Contains([]string{"get", "list", "watch"}, g.Verb) || g.Resource == "events"
	})
}

// refusal is a write that a policy refuses.
type refusal struct {
	rights.Grant
	ends time.Time
}

// refuse puts a policy in force: in half of the schedules for minutes, else for longer than any deadline of a transfer.
func (s *Simulation) refuse(pick int) bool {
	const minutes, beyond = 7, 90
	all := refusable()
	rest := pick / len(all)
	lasts := time.Duration(rest%minutes) * time.Minute
	if rest%2 == 0 {
		lasts += beyond * time.Minute
	}
	s.faults.refused = refusal{all[pick%len(all)], time.Now().Add(lasts)}
	if s.plan.Adopted { // an agent that cannot label its pod ends, and would be restarted until then
		s.faults.lasts = s.faults.refused.ends
	}
	s.trace.note("      ! " + s.faults.refused.String())
	return true
}

// admit removes the policy in force. What it stopped has as long as when it was asked for.
func (s *Simulation) admit() {
	if s.faults.refused.stopsTransfers() {
		for _, j := range s.work {
			j.asked = time.Now()
		}
	}
	s.faults.refused, s.faults.since = refusal{}, time.Now()
}

// refused returns the answer of the policy in force to a request.
func (s *Simulation) refused(p *parked) (outcome, bool) {
	policy := s.faults.refused
	if policy.Verb == "" {
		return outcome{}, false
	}
	record := p.request.Record()
	resource := record.Resource
	if record.Subresource != "" {
		resource += "/" + record.Subresource
	}
	if record.Verb != policy.Verb || resource != policy.Resource || record.APIGroup != policy.Group || (record.Namespace != veleroNamespace) != policy.Elsewhere {
		return outcome{}, false
	}
	s.trace.note("  → 403")
	err := apierrors.NewForbidden(schema.GroupResource{Group: policy.Group, Resource: policy.Resource}, record.Name, errPolicy)
	return outcome{response: apiserver.Failure(err).Response(p.http)}, true
}

// stopsTransfers reports whether no transfer can end under the policy: agents cannot write it, elect a coordinator, start,
// or end its mover.
func (r refusal) stopsTransfers() bool {
	return r.Resource == "leases" || r.Group == "velero.io" || r.Resource == "pods" && (r.Verb == "delete" || r.Verb == "patch")
}

// silenceEver takes a node off for ever, of which no pod has a volume that is backed up or restored on it.
func (s *Simulation) silenceEver(pick int) bool {
	node := s.nodes[pick%len(s.nodes)]
	bound := slices.ContainsFunc(s.plan.Work, func(w Work) bool {
		return (w.Kind == Backup || w.Kind == Restore) && s.nodes[w.Node%len(s.nodes)] == node
	})
	if bound || len(s.nodes) < 2 || s.API.Get("nodes", "", node) == nil {
		return false
	}
	s.silence(node)
	s.faults.ever = node
	return true
}
