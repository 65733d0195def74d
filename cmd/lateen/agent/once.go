package agent

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/lateen-project/lateen/reconcile"
)

// onceReasons returns the reasons of the Events that an object gets once, from any agent. Without that, each
// coordinator repeats them in its term, and each agent after a restart.
func onceReasons() []string { return []string{reconcile.EventForeign, reconcile.EventCleanUpWaits} }

// onceSink derives the name of an Event with one of these reasons from its object. The API server then rejects a
// second one.
type onceSink struct{ record.EventSink }

// Create implements record.EventSink.
func (s onceSink) Create(event *corev1.Event) (*corev1.Event, error) {
	if slices.Contains(onceReasons(), event.Reason) {
		event = event.DeepCopy()
		event.Name = strings.ToLower(event.Reason) + "." + string(event.InvolvedObject.UID)
	}
	return s.EventSink.Create(event)
}
