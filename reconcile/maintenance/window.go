package maintenance

import "time"

// day is the period of a Window.
const day = 24 * time.Hour

// Window is the daily time in which jobs may start, from Start until before End, both since midnight UTC. It may cross
// midnight. The zero value is the whole day.
type Window struct {
	Start, End time.Duration
}

// next returns the first time in the window that is not before t.
func (w Window) next(t time.Time) time.Time {
	if w == (Window{}) {
		return t
	}
	midnight := t.Truncate(day)
	since := t.Sub(midnight)
	inside := since >= w.Start && since < w.End
	if w.End < w.Start {
		inside = since >= w.Start || since < w.End
	}
	switch {
	case inside:
		return t
	case since < w.Start:
		return midnight.Add(w.Start)
	}
	return midnight.Add(day + w.Start)
}
