// Package figures computes what a benchmark prints from what was seen of a cluster. It is pure: it sends no request and
// waits for nothing.
package figures

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/testenv"
)

// Calls are what one user asked of the API server.
type Calls struct {
	Writes   int // without those of the next three fields
	Progress int // patches of a transfer's progress and of nothing else
	Events   int // creates and patches of Kubernetes Events
	Leases   int // writes that come with time and not with work
	Reads    int // get and list
	Watches  int // begun
	Conflict int // of all these, answered with 409: another client changed the object first
}

// CountCalls sorts the requests of one user.
func CountCalls(records cluster.Records) Calls {
	var calls Calls
	for _, record := range records {
		if record.Code == http.StatusConflict {
			calls.Conflict++
		}
		switch {
		case record.Verb == "watch":
			calls.Watches++
		case record.Write() && record.Resource == "events":
			calls.Events++
		case record.Write() && record.Resource == "leases":
			calls.Leases++
		case record.Write() && onlyProgress(record):
			calls.Progress++
		case record.Write():
			calls.Writes++
		default:
			calls.Reads++
		}
	}
	return calls
}

// onlyProgress reports whether a patch changes status.progress alone.
func onlyProgress(record cluster.Record) bool {
	var body struct {
		Status map[string]json.RawMessage `json:"status"`
	}
	if record.Verb != "patch" || json.Unmarshal(record.Body, &body) != nil {
		return false
	}
	_, progress := body.Status["progress"]
	return progress && len(body.Status) == 1
}

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
