package objects

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TimeOf returns the time of a field that may be missing; zero if it is.
func TimeOf(field *metav1.Time) time.Time { return ptr.Deref(field, metav1.Time{}).Time }

// Timestamp returns the value of a field; nil for the zero time.
func Timestamp(at time.Time) *metav1.Time {
	if at.IsZero() {
		return nil
	}
	return new(metav1.NewTime(at))
}

// LastSeen returns the last time of an Event. Recorders of events.k8s.io write a series, or only one time.
func LastSeen(event *corev1.Event) time.Time {
	seen := event.LastTimestamp.Time
	if event.EventTime.After(seen) {
		seen = event.EventTime.Time
	}
	if event.Series != nil && event.Series.LastObservedTime.After(seen) {
		seen = event.Series.LastObservedTime.Time
	}
	if seen.IsZero() {
		return event.CreationTimestamp.Time
	}
	return seen
}
