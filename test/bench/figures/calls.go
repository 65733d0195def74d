package figures

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/lateen-project/lateen/test/cluster"
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

	// By counts all of them by verb and resource, such as "create pods".
	By []Count
	// MostAlike is the read that was made most often, by its whole URI: who polls asks the same again.
	MostAlike Count
}

// Count is how often something happened.
type Count struct {
	What  string
	Times int
}

// CountCalls sorts the requests of one user.
func CountCalls(records cluster.Records) Calls {
	var calls Calls
	by, reads := map[string]int{}, map[string]int{}
	for _, record := range records {
		by[named(record)]++
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
			reads[record.RequestURI]++
		}
	}
	calls.By = ranked(by)
	if alike := ranked(reads); len(alike) > 0 {
		calls.MostAlike = alike[0]
	}
	return calls
}

// named is what a request did to which resource.
func named(record cluster.Record) string {
	name := record.Verb + " " + cmp.Or(record.Resource, record.RequestURI)
	if record.Subresource != "" {
		name += "/" + record.Subresource
	}
	if onlyProgress(record) {
		name += " (progress)"
	}
	return name
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

// ranked are the counts, the highest first.
func ranked(counts map[string]int) []Count {
	var all []Count
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, Count{What: what, Times: counts[what]})
	}
	slices.SortStableFunc(all, func(a, b Count) int { return cmp.Compare(b.Times, a.Times) })
	return all
}
