package node

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// Fault replaces the normal run of a pod. Exactly one of its parts is set.
type Fault struct {
	Match func(*corev1.Pod) bool // nil: data movers
	Times int                    // number of pods it applies to; 0: all

	NeverStarts bool     // stays in ContainerCreating
	Waiting     *Waiting // its container never starts, for a reason
	Refused     *Waiting // the kubelet rejects it: OutOfcpu, UnexpectedAdmissionError, …
	Ends        *Result  // it runs and ends with this result at once
}

// Waiting is a reason and a message.
type Waiting struct{ Reason, Message string }

// Faults are the rules of a node. Tests add them while it runs.
type Faults struct {
	lock  sync.Mutex
	rules []*Fault
}

// Add appends a rule.
func (f *Faults) Add(fault Fault) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.rules = append(f.rules, &fault)
}

// take returns the fault for a pod; the zero Fault if no rule matches.
func (f *Faults) take(pod *corev1.Pod) Fault {
	f.lock.Lock()
	defer f.lock.Unlock()
	for i, rule := range f.rules {
		if rule.Match == nil && !isMover(pod) || rule.Match != nil && !rule.Match(pod) {
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
