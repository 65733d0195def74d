package diagnose

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/status/view"
)

// repeated reports whether an Event repeats a fact of an object, or is one of the progress Events of movers.
func repeated(reason string) bool {
	return slices.Contains([]string{"Data-Path-Progress", "Data-Path-Started", "Data-Path-Completed", "Scheduled"}, reason)
}

func stepOf(event *corev1.Event, whose string) view.TimelineEvent {
	what := fmt.Sprintf("%s%s: %s", whose, event.Reason, event.Message)
	count := event.Count
	if event.Series != nil {
		count = max(count, event.Series.Count)
	}
	if count > 1 {
		what += fmt.Sprintf(" (%d times, last at %s)", count, lastSeen(event).UTC().Format(time.TimeOnly))
	}
	return view.TimelineEvent{Time: firstSeen(event).UTC().Truncate(time.Second), What: view.OneLine(what), Warning: event.Type == corev1.EventTypeWarning}
}

// firstSeen returns the first occurrence of an Event.
func firstSeen(event *corev1.Event) time.Time {
	switch {
	case !event.FirstTimestamp.IsZero():
		return event.FirstTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	}
	return event.CreationTimestamp.Time
}

// ordered sorts events by time. Events of the same second keep their logical order.
func ordered(steps []view.TimelineEvent) []view.TimelineEvent {
	slices.SortStableFunc(steps, func(a, b view.TimelineEvent) int { return a.Time.Compare(b.Time) })
	return append([]view.TimelineEvent{}, steps...)
}
