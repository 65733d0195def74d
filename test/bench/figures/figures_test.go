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
	measured := figures.Measure(backups(), 2)
	require.Equal(t, 3, measured.Completed)
	require.Equal(t, 10*time.Second, measured.Makespan)
	require.Equal(t, 2, measured.MostAtOnce)
	require.InDelta(t, (6+2+5.5)/20, measured.Held, 1e-9)
	require.Equal(t, 2*time.Second, measured.First)
	require.Equal(t, 5500*time.Millisecond, measured.Median)
	require.Zero(t, figures.Measure(nil, 2))
}

func TestTurnoverIsFromTheEndOfAMoverToWhoeverTakesItsSlot(t *testing.T) {
	ends := []time.Time{at(7.5), at(3.75), at(9.5)} // in any order
	require.Equal(t, []time.Duration{750 * time.Millisecond}, figures.Turnovers(backups(), ends, 2))
}

func TestTurnoverIsNotCountedWhileNobodyCouldBegin(t *testing.T) {
	require.Empty(t, figures.Turnovers(backups(), []time.Time{at(0.5)}, 2))
}

func TestPercentile(t *testing.T) {
	for name, test := range map[string]struct {
		sorted []time.Duration
		share  float64
		want   time.Duration
	}{
		"of nothing there is none":                    {nil, .5, 0},
		"the median of two is the lower one":          {[]time.Duration{1, 2}, .5, 1},
		"the median of three is the one between":      {[]time.Duration{1, 2, 3}, .5, 2},
		"the 99th of a few is the last of them":       {[]time.Duration{1, 2, 3}, .99, 3},
		"all of them are at most as long as the last": {[]time.Duration{1, 2, 3}, 1, 3},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, figures.Percentile(test.sorted, test.share))
		})
	}
}

func TestCallsAreSortedByWhatTheyAre(t *testing.T) {
	patch := func(body string) cluster.Record {
		return cluster.Record{Verb: "patch", Resource: "podvolumebackups", Code: 200, Body: json.RawMessage(body)}
	}
	get := cluster.Record{Verb: "get", Resource: "persistentvolumes", RequestURI: "/v", Code: 200}
	calls := figures.CountCalls(cluster.Records{
		patch(`{"status":{"phase":"InProgress"}}`),
		patch(`{"status":{"progress":{"bytesDone":1}}}`),
		patch(`{"status":{"phase":"Completed","progress":{"bytesDone":2}}}`),
		{Verb: "create", Resource: "pods", Code: 201},
		{Verb: "create", Resource: "events", Code: 201},
		{Verb: "update", Resource: "leases", Code: 200},
		{Verb: "create", Resource: "pods", Code: 409},
		{Verb: "watch", Resource: "events", Code: 200},
		{Verb: "get", Resource: "pods", Subresource: "log", RequestURI: "/log", Code: 404},
		get, get,
	})
	require.Equal(t, 4, calls.Writes)
	require.Equal(t, 1, calls.Leases)
	require.Equal(t, 1, calls.Conflict)
	require.Equal(t, 1, calls.Progress)
	require.Equal(t, 1, calls.Events)
	require.Equal(t, 1, calls.Watches)
	require.Equal(t, 3, calls.Reads)
	require.Equal(t, figures.Count{What: "/v", Times: 2}, calls.MostAlike)
	require.Contains(t, calls.By, figures.Count{What: "get pods/log", Times: 1})
	require.Contains(t, calls.By, figures.Count{What: "patch podvolumebackups (progress)", Times: 1})
	require.Contains(t, calls.By, figures.Count{What: "patch podvolumebackups", Times: 2})
}
