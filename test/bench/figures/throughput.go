// Package figures computes what a benchmark prints from what was seen of a cluster. It is pure: it asks
// nobody and waits for nothing.
package figures

import (
	"math"
	"slices"
	"time"

	"github.com/lateen-project/lateen/test/testenv"
)

// Throughput is how a number of pod volume backups went through the slots of one node.
type Throughput struct {
	Completed  int
	Makespan   time.Duration // from the first creation to the last end, as a watch saw them
	MostAtOnce int           // InProgress at the same instant
	Held       float64       // share of slots × makespan in which a backup was InProgress, 0 to 1
	First      time.Duration // from the first creation to the first InProgress
	Median     time.Duration // that a backup was InProgress
}

// Measure reads the transitions, which are in the order of the API server, of a node with that many slots.
func Measure(transitions []testenv.Transition, slots int) Throughput {
	var all Throughput
	if len(transitions) == 0 {
		return all
	}
	begun := map[string]time.Time{}
	var held time.Duration
	var spans []time.Duration
	last := transitions[0].At
	for _, t := range transitions {
		if t.To == testenv.InProgress {
			if len(begun) == 0 && len(spans) == 0 {
				all.First = t.At.Sub(transitions[0].At)
			}
			begun[t.Name] = t.At
		} else if since, running := begun[t.Name]; running {
			held += t.At.Sub(since)
			spans = append(spans, t.At.Sub(since))
			delete(begun, t.Name)
		}
		all.MostAtOnce = max(all.MostAtOnce, len(begun))
		if t.To == testenv.Completed {
			all.Completed++
			last = t.At
		}
	}
	all.Makespan = last.Sub(transitions[0].At)
	slices.Sort(spans)
	all.Median = Percentile(spans, .5)
	all.Held = Share(held, all.Makespan, slots)
	return all
}

// Share is which part of all slots the time fills, 0 to 1.
func Share(busy, makespan time.Duration, slots int) float64 {
	if makespan <= 0 || slots == 0 {
		return 0
	}
	return busy.Seconds() / (makespan.Seconds() * float64(slots))
}

// Turnovers are the times from the end of a mover to the InProgress that took its slot, sorted. Slots are
// alike, so the first end goes with the first backup that began when all slots were taken, and so on. Left
// out are those where nobody was Prepared, and so able to begin, when the mover ended.
func Turnovers(transitions []testenv.Transition, ends []time.Time, slots int) []time.Duration {
	ready := map[string]time.Time{}
	var begins []testenv.Transition
	for _, t := range transitions {
		switch t.To {
		case testenv.Prepared:
			ready[t.Name] = t.At
		case testenv.InProgress:
			begins = append(begins, t)
		default:
		}
	}
	var found []time.Duration
	for i, end := range slices.SortedFunc(slices.Values(ends), time.Time.Compare) {
		if i+slots >= len(begins) {
			break
		}
		begin := begins[i+slots]
		if !ready[begin.Name].After(end) {
			found = append(found, begin.At.Sub(end))
		}
	}
	slices.Sort(found)
	return found
}

// Percentile is the smallest of the sorted durations that is at least as long as that share of them, 0 if
// there is none.
func Percentile(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(share*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}
