package figures_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/bench/figures"
)

func TestRunsOfRepositoriesAreMeasured(t *testing.T) {
	due := time.Unix(1764000000, 0)
	run := func(created time.Duration) figures.Run {
		at := due.Add(created)
		return figures.Run{
			Made: at, Pod: at, Begun: at.Add(time.Second), Ended: at.Add(3 * time.Second), Over: at.Add(4 * time.Second), Noted: at.Add(5 * time.Second),
		}
	}
	failed := run(4500 * time.Millisecond)
	failed.Failed = true
	require.Equal(t, figures.Runs{
		Succeeded: 3, Makespan: 13500 * time.Millisecond, MostAtOnce: 2,
		Pod: time.Second, Work: 2 * time.Second, Close: time.Second, Turnover: 1500 * time.Millisecond,
	}, figures.MeasureRuns(due, []figures.Run{run(8500 * time.Millisecond), failed, run(0), run(0)}, 2))
	atOnce := figures.MeasureRuns(due, []figures.Run{run(0), run(4 * time.Second)}, 1)
	require.Equal(t, 1, atOnce.MostAtOnce, "one takes the place of the other")
	require.Equal(t, figures.Runs{}, figures.MeasureRuns(due, nil, 3))
}
