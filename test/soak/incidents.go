package main

import (
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/lateen-project/lateen/test/testenv"
)

// incidents are what has happened to each transfer, by its name, which is that of its movers too.
type incidents struct {
	lock sync.Mutex
	all  map[string]map[fault]int
}

func newIncidents() *incidents { return &incidents{all: map[string]map[fault]int{}} }

// add notes a fault before it hits, so that nobody looks too early.
func (h *incidents) add(name string, what fault) {
	h.lock.Lock()
	defer h.lock.Unlock()
	if h.all[name] == nil {
		h.all[name] = map[fault]int{}
	}
	h.all[name][what]++
}

func (h *incidents) of(name string) map[fault]int {
	h.lock.Lock()
	defer h.lock.Unlock()
	return maps.Clone(h.all[name])
}

// unjustified says why an end is not one that the incidents explain; empty if they do. What happens to agents, to requests or
// to a node's connection explains none.
func unjustified(ended transferState, incidents map[fault]int, retries int) string {
	status := ended.last.Status
	lost := incidents[vanished] + incidents[evicted] + incidents[preempted] + incidents[refused]
	says := func(description string) bool { return strings.Contains(status.Message, description) }
	justified := false
	switch status.Phase {
	case testenv.Completed:
		justified = true
	case testenv.Canceled:
		justified = incidents[canceled]+incidents[deleted] > 0
	case testenv.Failed:
		switch {
		case says(brokenMessage):
			justified = incidents[broken] > 0
		case says("given up after"):
			justified = lost > retries
		case says("not prepared within"):
			justified = incidents[stuck]+incidents[driverFails]+lost > 0
		case says("has ended, so containers"): // the mover was lost when its pod had its volume
			justified = incidents[targetGone]+lost > 0
		default:
			justified = incidents[targetGone] > 0
		}
	case "", testenv.Accepted, testenv.Prepared, testenv.InProgress, testenv.Canceling, testenv.Gone: // it was gone before it came to an end
		justified = incidents[deleted] > 0
	}
	if justified {
		return ""
	}
	return fmt.Sprintf("nothing that has happened to it explains its end: %v, %q", incidents, status.Message)
}
