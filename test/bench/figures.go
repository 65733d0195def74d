package main

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/testenv"
)

// calls are what one user asked of the API server, without writes of Leases and patches of progress alone.
type calls struct {
	writes   int // without those of Events
	events   int // creates and patches of Kubernetes Events
	reads    int // get and list
	conflict int // of all these, answered with 409: another client changed the object first
}

// countCalls sorts the requests of one user.
func countCalls(records cluster.Records) (all calls) {
	for _, record := range records {
		if record.Code == http.StatusConflict {
			all.conflict++
		}
		switch {
		case record.Verb == "watch", record.Write() && (record.Resource == "leases" || onlyProgress(record)):
		case record.Write() && record.Resource == "events":
			all.events++
		case record.Write():
			all.writes++
		default:
			all.reads++
		}
	}
	return all
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

// throughput is how a number of transfers went through the slots of their nodes.
type throughput struct {
	completed  int
	makespan   time.Duration // from the first creation to the last end, as a watch saw them
	mostAtOnce int           // InProgress at the same instant
}

// measure reads the transitions, which are in the order of the API server.
func measure(transitions []testenv.Transition) (all throughput) {
	running := map[string]bool{}
	for _, t := range transitions {
		if t.To != testenv.InProgress {
			delete(running, t.Name)
		} else {
			running[t.Name] = true
		}
		all.mostAtOnce = max(all.mostAtOnce, len(running))
		if t.To == testenv.Completed {
			all.completed++
			all.makespan = t.At.Sub(transitions[0].At)
		}
	}
	return all
}
