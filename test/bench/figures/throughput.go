// Package figures computes what a benchmark prints from what was seen of a cluster. It is pure: it sends no request and
// waits for nothing.
package figures

import (
	"time"

	"github.com/lateen-project/lateen/test/testenv"
)

// Throughput is how a number of transfers went through the slots of their nodes.
type Throughput struct {
	Completed  int
	Makespan   time.Duration // from the first creation to the last end, as a watch saw them
	MostAtOnce int           // InProgress at the same instant
}

// Measure reads the transitions, which are in the order of the API server.
func Measure(transitions []testenv.Transition) Throughput {
	var all Throughput
	running := map[string]bool{}
	for _, t := range transitions {
		if t.To != testenv.InProgress {
			delete(running, t.Name)
		} else {
			running[t.Name] = true
		}
		all.MostAtOnce = max(all.MostAtOnce, len(running))
		if t.To == testenv.Completed {
			all.Completed++
			all.Makespan = t.At.Sub(transitions[0].At)
		}
	}
	return all
}
