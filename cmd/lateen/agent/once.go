package agent

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/lateen-project/lateen/reconcile"
)

// onceReasons are those of the Events that an object gets once, whichever agents report them: each coordinator does in
// its term, and each agent that is started again.
func onceReasons() []string { return []string{reconcile.EventForeign, reconcile.EventCleanUpWaits} }

// onceSink names the Events with one of the reasons after their object, so that the API server refuses a second one.
type onceSink struct{ record.EventSink }

// Create implements record.EventSink.
func (s onceSink) Create(event *corev1.Event) (*corev1.Event, error) {
	if slices.Contains(onceReasons(), event.Reason) {
		event = event.DeepCopy()
		event.Name = strings.ToLower(event.Reason) + "." + string(event.InvolvedObject.UID)
	}
	return s.EventSink.Create(event)
}
