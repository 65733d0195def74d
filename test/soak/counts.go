package main

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/lateen-project/lateen/test/testenv"
)

// fault is something that goes wrong.
type fault string

// What the API server does to requests of agents.
const (
	conflict    fault = "request: 409"
	tooMany     fault = "request: 429 with Retry-After"
	internal    fault = "request: 500"
	unavailable fault = "request: 503"
	lostBefore  fault = "request: timeout before it"
	lostAfter   fault = "request: timeout after a write"
	reset       fault = "request: connection reset"
	expired     fault = "watch: 410"
	cutOff      fault = "watch: cut off"
)

// What happens to agents.
const (
	killedBefore fault = "agent: killed before a write"
	killedAfter  fault = "agent: killed after a write"
	terminated   fault = "agent: terminated"
	parted       fault = "agent: cut off from the API server"
	silent       fault = "node: not heard of"
)

// What happens to movers.
const (
	vanished  fault = "mover: vanished"
	evicted   fault = "mover: evicted"
	preempted fault = "mover: preempted by the scheduler"
	refused   fault = "mover: refused by the kubelet"
	broken    fault = "mover: fails"
	stuck     fault = "mover: never starts"
)

// What people and storage do.
const (
	canceled    fault = "transfer: canceled"
	deleted     fault = "transfer: deleted"
	targetGone  fault = "target of a restore: deleted"
	classGone   fault = "priority class: deleted"
	driverFails fault = "CSI driver: error"
)

// spoilers are the faults of requests.
func spoilers() []fault {
	return []fault{conflict, tooMany, internal, unavailable, lostBefore, lostAfter, reset, expired, cutOff}
}

// faults are all of them.
func faults() []fault {
	return append(spoilers(), killedBefore, killedAfter, terminated, parted, silent, vanished, evicted, preempted, refused, broken, stuck,
		canceled, deleted, targetGone, classGone, driverFails)
}

// end is how a transfer of a kind can end; deleted ones have their last phase, or none.
type end struct {
	kind  testenv.Kind
	phase testenv.Phase
}

// counts counts what went wrong and how transfers ended.
type counts struct {
	lock  sync.Mutex
	fired map[fault]int
	ends  map[end]int
}

func newCounts() *counts { return &counts{fired: map[fault]int{}, ends: map[end]int{}} }

func (t *counts) add(what fault) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.fired[what]++
}

func (t *counts) ended(kind testenv.Kind, phase testenv.Phase) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.ends[end{kind, phase}]++
}

func (t *counts) print(out io.Writer) {
	t.lock.Lock()
	defer t.lock.Unlock()
	fmt.Fprintln(out, "how often each fault fired:")
	for _, what := range faults() {
		fmt.Fprintf(out, "  %-38s %6d\n", what, t.fired[what])
	}
	fmt.Fprintln(out, "how transfers ended:")
	fmt.Fprintf(out, "  %-18s %10s %10s %10s %12s\n", "", testenv.Completed, testenv.Failed, testenv.Canceled, "never begun")
	for _, kind := range testenv.Kinds() {
		fmt.Fprintf(out, "  %-18s", kind)
		for _, phase := range []testenv.Phase{testenv.Completed, testenv.Failed, testenv.Canceled} {
			fmt.Fprintf(out, " %10d", t.ends[end{kind, phase}])
		}
		fmt.Fprintf(out, " %12d\n", t.ends[end{kind, ""}])
	}
}

// err complains of what never happened: a soak without it shows nothing.
func (t *counts) err() error {
	t.lock.Lock()
	defer t.lock.Unlock()
	var never []string
	for _, what := range faults() {
		if t.fired[what] == 0 {
			never = append(never, string(what))
		}
	}
	for _, kind := range testenv.Kinds() {
		if t.ends[end{kind, testenv.Completed}] == 0 {
			never = append(never, "a "+string(kind)+" that completes")
		}
	}
	if len(never) > 0 {
		return fmt.Errorf("never seen, soak longer: %s", strings.Join(never, "; "))
	}
	return nil
}
