package node

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// Fault is what happens to a pod instead of running as it should. Just one of its parts is set.
type Fault struct {
	Match func(*corev1.Pod) bool // nil: data movers
	Times int                    // how many pods it hits; 0: every one

	NeverStarts bool     // stays in ContainerCreating
	Waiting     *Waiting // its container never starts, for a reason
	Refused     *Waiting // the kubelet does not admit it: OutOfcpu, UnexpectedAdmissionError, …
	Pulls       *Pull    // its image is pulled first
	Ends        *Result  // it runs, and ends like this at once
}

// Waiting is a reason and a message.
type Waiting struct{ Reason, Message string }

// Faults are the rules of a node; tests add and clear them while it runs.
type Faults struct {
	lock  sync.Mutex
	rules []*Fault
}

// Add puts a rule behind those that are there.
func (f *Faults) Add(fault Fault) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.rules = append(f.rules, &fault)
}

// Clear drops all rules. Pods that were hit stay as they are.
func (f *Faults) Clear() {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.rules = nil
}

// take is the fault for a pod, if there is one; the zero Fault is none.
func (f *Faults) take(pod *corev1.Pod) Fault {
	f.lock.Lock()
	defer f.lock.Unlock()
	for i, rule := range f.rules {
		if rule.Match == nil && !IsMover(pod) || rule.Match != nil && !rule.Match(pod) {
			continue
		}
		hit := *rule
		if rule.Times == 1 {
			f.rules = slices.Delete(f.rules, i, i+1)
		} else if rule.Times > 1 {
			rule.Times--
		}
		return hit
	}
	return Fault{}
}
