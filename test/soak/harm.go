package main

import (
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/lateen-project/lateen/test/world"
)

// harms are what has happened to each transfer, by its name, which is that of its movers too.
type harms struct {
	lock sync.Mutex
	all  map[string]map[fault]int
}

func newHarms() *harms { return &harms{all: map[string]map[fault]int{}} }

// add notes a fault before it hits, so that nobody looks too early.
func (h *harms) add(name string, what fault) {
	h.lock.Lock()
	defer h.lock.Unlock()
	if h.all[name] == nil {
		h.all[name] = map[fault]int{}
	}
	h.all[name][what]++
}

func (h *harms) of(name string) map[fault]int {
	h.lock.Lock()
	defer h.lock.Unlock()
	return maps.Clone(h.all[name])
}

// unjustified says why an end is not one that the harms explain; empty if they do. What happens to agents, to requests or
// to a node's connection explains none.
func unjustified(ended life, harms map[fault]int, retries int) string {
	status := ended.last.Status
	lost := harms[vanished] + harms[evicted] + harms[preempted] + harms[refused]
	says := func(description string) bool { return strings.Contains(status.Message, description) }
	justified := false
	switch status.Phase {
	case world.Completed:
		justified = true
	case world.Canceled:
		justified = harms[canceled]+harms[deleted] > 0
	case world.Failed:
		switch {
		case says(brokenMessage):
			justified = harms[broken] > 0
		case says("given up after"):
			justified = lost > retries
		case says("not prepared within"):
			justified = harms[stuck]+harms[driverFails]+lost > 0
		case says("has ended, so containers"): // the mover was lost when its pod had its volume
			justified = harms[targetGone]+lost > 0
		default:
			justified = harms[targetGone] > 0
		}
	case "", world.Accepted, world.Prepared, world.InProgress, world.Canceling, world.Gone: // it was gone before it came to an end
		justified = harms[deleted] > 0
	}
	if justified {
		return ""
	}
	return fmt.Sprintf("nothing that has happened to it explains its end: %v, %q", harms, status.Message)
}
