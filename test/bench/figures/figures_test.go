package figures_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/bench/figures"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	prepared   = testenv.Prepared
	inProgress = testenv.InProgress
	completed  = testenv.Completed
)

// at is a moment of the fixture below, in seconds.
func at(seconds float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

// backups is three backups on a node with two slots: a and b at once, then c in the slot of b.
func backups() []testenv.Transition {
	moment := func(seconds float64, name string, to testenv.Phase) testenv.Transition {
		return testenv.Transition{Name: name, To: to, At: at(seconds)}
	}
	return []testenv.Transition{
		moment(0, "a", ""), moment(0, "b", ""), moment(0, "c", ""),
		moment(1, "a", prepared), moment(1, "b", prepared), moment(1, "c", prepared),
		moment(2, "a", inProgress), moment(2, "b", inProgress),
		moment(4, "b", completed), moment(4.5, "c", inProgress),
		moment(8, "a", completed), moment(10, "c", completed),
	}
}

func TestThroughputIsWhatTheWatchSaw(t *testing.T) {
	want := figures.Throughput{Completed: 3, Makespan: 10 * time.Second, MostAtOnce: 2}
	require.Equal(t, want, figures.Measure(backups()))
	require.Zero(t, figures.Measure(nil))
}

func TestCallsAreSortedByWhatTheyAre(t *testing.T) {
	patch := func(body string) cluster.Record {
		return cluster.Record{Verb: "patch", Resource: "podvolumebackups", Code: 200, Body: json.RawMessage(body)}
	}
	get := cluster.Record{Verb: "get", Resource: "persistentvolumes", Code: 200}
	calls := figures.CountCalls(cluster.Records{
		patch(`{"status":{"phase":"InProgress"}}`),
		patch(`{"status":{"progress":{"bytesDone":1}}}`),
		patch(`{"status":{"phase":"Completed","progress":{"bytesDone":2}}}`),
		{Verb: "create", Resource: "pods", Code: 201},
		{Verb: "create", Resource: "events", Code: 201},
		{Verb: "update", Resource: "leases", Code: 200},
		{Verb: "create", Resource: "pods", Code: 409},
		{Verb: "watch", Resource: "events", Code: 200},
		{Verb: "get", Resource: "pods", Subresource: "log", Code: 404},
		get, get,
	})
	require.Equal(t, figures.Calls{Writes: 4, Progress: 1, Events: 1, Leases: 1, Reads: 3, Watches: 1, Conflict: 1}, calls)
}
