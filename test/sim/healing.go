package sim

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"
	_ "unsafe" // for go:linkname

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/runtime"

	"github.com/lateen-project/lateen/test/sim/apiserver"
	"github.com/lateen-project/lateen/test/sim/controllers"
)

// healing returns what ends a fault, or recovers from it.
func (s *Simulation) healing() (all []choice) {
	all = s.leaving()
	for _, node := range s.nodes {
		if p := s.last(node); !p.alive() && !p.stopping && !s.faults.silent[node] && s.isReady(p) {
			all = append(all, choice{node + ": reports the end of " + p.name, often, func() { s.setAgent(p, corev1.ConditionFalse) }})
		} else if unready := p.server.Unreachable(); p.alive() && !s.faults.silent[node] && p.unready != unready {
			all = append(all, choice{node + ": probes " + p.name, often, func() {
				p.unready = unready
				s.setAgent(p, map[bool]corev1.ConditionStatus{true: corev1.ConditionFalse, false: corev1.ConditionTrue}[unready])
			}})
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

// evicting plays the taint manager: it deletes the pods of a node that is not Ready. In half of the schedules, movers
// tolerate that node for ever.
func (s *Simulation) evicting() (all []choice) {
	for _, object := range s.API.List("pods") {
		pod := apiserver.As[corev1.Pod](object)
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil || owner.Kind != "Job" && s.plan.Seed%2 == 1 {
			continue
		}
		if s.faults.silent[pod.Spec.NodeName] && pod.DeletionTimestamp == nil && !controllers.Terminal(pod) {
			all = append(all, choice{"taint manager: evicts pod " + object.Key(), 1, func() { s.Delete("pods", object) }})
		}
	}
	return all
}

// drain cordons a node and evicts its movers and Jobs. What a DaemonSet or a disruption budget holds stays.
func (s *Simulation) drain(node string) bool {
	object := s.API.Get("nodes", "", node)
	if object == nil {
		return false
	}
	s.Patch("nodes", object, map[string]any{"spec": map[string]any{"unschedulable": true}})
	for _, m := range s.running() {
		pod := s.API.Find(m.pod.UID)
		if pod == nil || m.pod.Spec.NodeName != node || pod.GetDeletionTimestamp() != nil {
			continue
		}
		s.Evict(pod)
	}
	return true
}

// deleteNode takes a machine out of the cluster for ever: its agent and its movers end, its Node is deleted.
func (s *Simulation) deleteNode(node string) bool {
	object := s.API.Get("nodes", "", node)
	if object == nil || s.faults.silent[node] {
		return false
	}
	for _, p := range s.processes {
		if p.node == node {
			s.kill(p)
		}
	}
	for _, m := range s.running() {
		if m.pod.Spec.NodeName == node {
			m.result = &result{code: 137}
		}
	}
	s.faults.silent[node] = true
	s.Delete("nodes", object)
	return true
}

// silence cuts a machine off: its agent too, which the node lifecycle controller marks as not Ready. Its movers go on.
func (s *Simulation) silence(node string) {
	s.faults.silent[node] = true
	s.setReady(node, corev1.ConditionUnknown)
	for _, p := range s.processes {
		if p.node != node || !p.alive() {
			continue
		}
		p.cut = true
		for _, w := range s.watchesOf(p) {
			w.Close()
		}
		s.setAgent(p, corev1.ConditionFalse)
	}
}

// checkLost checks that no transfer stays on a node that has been silent for long, if nothing else went wrong since
// and an agent can act. One that is Accepted has no mover there, and waits for the prepare timeout.
func (s *Simulation) checkLost() error {
	const long = 2 * time.Minute
	if s.undisturbed() < long || !s.calm() || len(s.faults.silent) == 0 || s.faults.refused.stopsTransfers() {
		return nil
	}
	for _, transfer := range s.transfers() {
		v := viewOf(transfer.Object)
		rebinds := s.faults.refused.Verb != "" && transfer.GetAnnotations()[moverSucceeded] != "" // the policy may refuse its writes
		if s.faults.silent[v.node] && !rebinds && !v.ended() && !slices.Contains([]string{"", "New", "Accepted"}, v.phase) {
			return fmt.Errorf("%s %s is %s on %s, which has been silent for more than %s", transfer.GetKind(), transfer.GetName(), v.phase, v.node, long)
		}
	}
	return nil
}

// checkCanceled checks that no canceled transfer stays as it is before its mover starts, whatever is missing, if nothing
// else went wrong for long: the coordinator acts for an agent that is cut off.
func (s *Simulation) checkCanceled() error {
	const long = 10 * time.Minute
	if s.undisturbed() < long || !s.calm() || s.faults.refused.stopsTransfers() {
		return nil
	}
	for _, transfer := range s.transfers() {
		v := viewOf(transfer.Object)
		if v.cancel && slices.Contains([]string{"", "New", "Accepted", "Prepared"}, v.phase) {
			return fmt.Errorf("%s %s is %s, though it was canceled more than %s ago", transfer.GetKind(), transfer.GetName(), v.phase, long)
		}
	}
	return nil
}

// housekeeping plays the garbage collector of pods: it removes those of nodes that do not exist.
func (s *Simulation) housekeeping() (all []choice) {
	for _, object := range s.API.List("pods") {
		node := apiserver.As[corev1.Pod](object).Spec.NodeName
		if node != "" && s.API.Get("nodes", "", node) == nil {
			all = append(all, choice{"pod garbage collector: removes pod " + object.Key(), seldom, func() { s.remove(object) }})
		}
	}
	return all
}

// returning returns the choices that bring a node back.
func (s *Simulation) returning(node string) (all []choice) {
	object := s.API.Get("nodes", "", node)
	switch {
	case node == s.faults.ever:
	case object == nil && s.API.Find(types.UID(s.last(node).pod)) != nil: // a kubelet would run its agent again
	case object == nil:
		return []choice{{"node " + node + " joins again", seldom / 2, func() {
			s.createNode(node)
			s.faults.silent[node] = false
			s.deploy(node)
		}}}
	case s.faults.silent[node]:
		return []choice{{"node " + node + " returns", seldom / 2, func() {
			s.faults.silent[node], s.faults.since = false, time.Now()
			s.setReady(node, corev1.ConditionTrue)
			if p := s.last(node); p.alive() {
				p.cut = false
				s.setAgent(p, corev1.ConditionTrue)
			}
		}}}
	case apiserver.As[corev1.Node](object).Spec.Unschedulable:
		return []choice{{"node " + node + " is uncordoned", seldom, func() {
			s.Patch("nodes", object, map[string]any{"spec": map[string]any{"unschedulable": nil}})
		}}}
	}
	return nil
}

// overlap starts another agent on a node while the old one still runs, as a rolling update with surge does.
func (s *Simulation) overlap(node string) bool {
	old := s.last(node)
	if s.faults.silent[node] || !old.alive() {
		return false
	}
	old.leaving = true
	s.faults.overlaps[node]++
	s.deploy(node)
	return true
}

// leaving returns the choices that end the old agents of overlaps.
func (s *Simulation) leaving() (all []choice) {
	for _, p := range s.processes {
		if p.stopping && !p.alive() && s.last(p.node) == p && !s.faults.silent[p.node] {
			all = append(all, choice{p.node + ": the next agent follows " + p.name, often, func() { s.replace(p) }})
		}
		if p.leaving && p.alive() {
			all = append(all, choice{p.node + ": ends the old agent " + p.name, seldom, func() {
				s.kill(p)
				s.faults.since = time.Now()
				if pod := s.API.Find(podUID(p)); pod != nil {
					s.remove(pod)
				}
			}})
		}
	}
	return all
}

func (s *Simulation) setReady(node string, ready corev1.ConditionStatus) {
	object := s.API.Get("nodes", "", node)
	s.Patch("nodes", object, map[string]any{"status": map[string]any{
		"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastTransitionTime: s.Now()}},
	}})
}

// setAgent sets whether the pod of an agent is Ready.
func (s *Simulation) setAgent(p *process, ready corev1.ConditionStatus) {
	pod := s.API.Find(types.UID(p.pod))
	if pod == nil {
		return
	}
	s.Patch("pods", pod, map[string]any{"status": map[string]any{"conditions": s.conditions(ready)}})
}

// jitterRand is the random number of wait.Jitter, by which client-go delays retries and renewals.
//
//go:linkname jitterRand k8s.io/apimachinery/pkg/util/wait.jitterRand
var jitterRand func() float64

// fixJitter makes jitter a function of the time, which is virtual: it then does not depend on which goroutine asks first.
func fixJitter() {
	jitterRand = func() float64 {
		sum := fnv.New64a()
		_, _ = sum.Write(time.Now().AppendFormat(nil, time.RFC3339Nano)) // it cannot fail
		return float64(sum.Sum64()>>11) / (1 << 53)
	}
	runtime.ErrorHandlers = nil // they log, and sleep by a clock that all bubbles share
}
