package sim

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/sim/apiserver"
	"github.com/lateen-project/lateen/test/sim/controllers"
)

// healing returns what ends a fault, or recovers from it.
func (s *Simulation) healing() (all []choice) {
	all = s.leaving()
	for _, node := range s.nodes {
		if p := s.last(node); !p.alive() && !p.stopping && !s.faults.silent[node] && s.isReady(p) {
			all = append(all, choice{node + ": reports the end of " + p.name, often, func() { s.setAgent(p, corev1.ConditionFalse) }})
		}
	}
	if time.Now().Before(s.faults.lasts) {
		return all
	}
	for _, node := range s.nodes {
		all = append(all, s.returning(node)...)
		if p := s.last(node); !p.alive() && !p.stopping && !s.faults.silent[node] {
			all = append(all, choice{node + ": restarts the agent", seldom, func() {
				s.setAgent(s.start(node, p.pod), corev1.ConditionTrue)
			}})
		}
	}
	for _, p := range s.processes {
		if p.alive() && p.cut && !s.faults.silent[p.node] {
			all = append(all, choice{p.name + " is connected again", seldom, func() { p.cut, s.faults.since = false, time.Now() }})
		}
	}
	if policy := s.faults.refused; policy.Verb != "" && time.Now().After(policy.ends) {
		all = append(all, choice{"the policy is removed", seldom, s.admit})
	}
	if s.NoPods {
		all = append(all, choice{"the pods of jobs are admitted again", seldom, func() { s.NoPods = false }})
	}
	if s.API.Lag > 0 {
		all = append(all, choice{"the API server has caught up", seldom / 2, func() { s.API.Lag = 0 }})
	}
	if s.API.Get("storageclasses", "", className) == nil {
		all = append(all, choice{"the storage class is created again", seldom, s.createClass})
	}
	if s.plan.Priority && s.API.Get("priorityclasses", "", priorityName) == nil {
		all = append(all, choice{"the priority class is created again", seldom, s.createPriority})
	}
	if s.faults.driver > 0 {
		all = append(all, choice{"the driver works again", seldom, func() { s.faults.driver = 0 }})
	}
	return all
}

// isReady reports whether the pod of an agent is Ready.
func (s *Simulation) isReady(p *process) bool {
	pod := s.API.Find(types.UID(p.pod))
	return pod != nil && slices.ContainsFunc(apiserver.As[corev1.Pod](pod).Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
	})
}

// last returns the newest process of a node.
func (s *Simulation) last(node string) (newest *process) {
	for _, p := range s.processes {
		if p.node == node {
			newest = p
		}
	}
	return newest
}

// stray returns the choices that end movers whose pods no longer exist: their kubelets notice.
func (s *Simulation) stray() (all []choice) {
	for _, m := range s.running() {
		pod := s.API.Get("pods", m.pod.Namespace, m.pod.Name)
		if (pod == nil || pod.GetUID() != m.pod.UID) && !s.faults.silent[m.pod.Spec.NodeName] {
			all = append(all, choice{m.pod.Spec.NodeName + ": ends the stray mover " + m.pod.Name, often, func() { m.result = &result{code: 137} }})
		}
	}
	return all
}

// evicting plays the taint manager: it deletes the pods of a node that is not Ready.
func (s *Simulation) evicting() (all []choice) {
	for _, object := range s.API.List("pods") {
		pod := apiserver.As[corev1.Pod](object)
		mover := metav1.GetControllerOfNoCopy(pod) != nil
		if mover && s.faults.silent[pod.Spec.NodeName] && pod.DeletionTimestamp == nil && !controllers.Terminal(pod) {
			all = append(all, choice{"taint manager: evicts pod " + object.Key(), 1, func() { s.Delete("pods", object) }})
		}
	}
	return all
}
