package maintenance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/objects"
)

func TestJobsStartInTheWindowOnly(t *testing.T) {
	require.Equal(t, "16:00", now().UTC().Format("15:04"))
	hours := func(start, end float64) Window {
		return Window{Start: time.Duration(start * float64(time.Hour)), End: time.Duration(end * float64(time.Hour))}
	}
	start := Step{Action: Start, Due: ago(time.Hour), Factor: 1}
	for name, test := range map[string]struct {
		window Window
		want   Step
	}{
		"without a window":                 {Window{}, start},
		"it opens now":                     {hours(16, 18), start},
		"it is open":                       {hours(1, 16.5), start},
		"it has just closed":               {hours(1, 16), Step{After: 9 * time.Hour}},
		"it opens later today":             {hours(17, 18), Step{After: time.Hour}},
		"it opens tomorrow":                {hours(15, 15.5), Step{After: 23 * time.Hour}},
		"it crosses midnight and is open":  {hours(15, 2), start},
		"it crosses midnight and opens":    {hours(22, 2), Step{After: 6 * time.Hour}},
		"it crosses midnight, at its end":  {hours(22, 16), Step{After: 6 * time.Hour}},
		"it crosses midnight, before that": {hours(22, 16.5), start},
	} {
		t.Run(name, func(t *testing.T) {
			p := policy()
			p.Window = test.window
			require.Equal(t, test.want, Next(ready(), nil, existing(), p, now()))
		})
	}
}

func TestAJobThatBecomesDueAfterTheWindowWaitsForTheNext(t *testing.T) {
	r, p := ready(), policy()
	p.Window = Window{Start: 15 * time.Hour, End: 17 * time.Hour}
	r.Last = ago(30 * time.Minute)
	require.Equal(t, Step{After: 30 * time.Minute}, Next(r, nil, existing(), p, now()), "due at 16:30")
	r.Last = now()
	require.Equal(t, Step{After: 23 * time.Hour}, Next(r, nil, existing(), p, now()), "due at 17:00")
}

func TestTheWindowDelaysNothingButStarts(t *testing.T) {
	p := policy()
	p.Window = Window{Start: time.Hour, End: 2 * time.Hour}
	ended := unrecorded(job(ago(time.Minute), objects.JobSucceeded))
	require.Equal(t, Record, Next(ready(), []objects.JobStatus{ended}, existing(), p, now()).Action)
}

func TestIntervalsAreWholeDaysWithAWindow(t *testing.T) {
	r, p := ready(), policy()
	require.Equal(t, time.Hour, p.IntervalOf(r))
	p.Window = Window{Start: time.Hour, End: 2 * time.Hour}
	require.Equal(t, 24*time.Hour, p.IntervalOf(r))
	r.Frequency = 25 * time.Hour
	require.Equal(t, 48*time.Hour, p.IntervalOf(r))
}
