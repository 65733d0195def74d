package exposer

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Diagnose returns what blocks a mover, in addition to the status of its pod. It reports the kubelet's mount
// Warnings, unbound claims with their newest Warning, and snapshots that are not ready.
func (e *Exposer) Diagnose(ctx context.Context, move objects.MoverSpec, found Existing) string {
	var reported []string
	if found.Pod != nil && objects.Starting(found.Pod) {
		if diagnosis := e.warning(ctx, found.Pod); diagnosis != "" {
			reported = append(reported, fmt.Sprintf("mover pod %s on node %s: %s", found.Pod.Name, found.Pod.Spec.NodeName, diagnosis))
		}
	}
	for _, claim := range found.Claims {
		if claim.Status.Phase == corev1.ClaimBound {
			continue
		}
		reported = append(reported, strings.TrimSuffix(fmt.Sprintf("claim %s is %s: %s", claim.Name, claim.Status.Phase, e.warning(ctx, claim)), ": "))
	}
	if move.Source.Snapshot != nil {
		if diagnosis := e.diagnoseSnapshots(ctx, move); diagnosis != "" {
			reported = append(reported, diagnosis)
		}
	}
	return strings.Join(reported, "; ")
}

// reasonUnscheduled is the reason of a pod without a node; it is outdated once the pod has a node.
const reasonUnscheduled = "FailedScheduling"

// warning describes the newest Warning about an object; empty if none exists or the read fails. It is used for claims
// and for pods with a node. It skips Warnings of the scheduler: they are outdated there, although their timestamps
// are finer.
func (e *Exposer) warning(ctx context.Context, about metav1.Object) string {
	newest, err := newestWarning(ctx, e.Client, about.GetNamespace(), about.GetUID(), reasonUnscheduled)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(newest.Reason+": "+newest.Message, ": ")
}

// newestWarning lists the Events about an object and returns the newest Warning, but for those of the skipped reason;
// an empty Event if there is none.
func newestWarning(ctx context.Context, client kubernetes.Interface, namespace string, about types.UID, skipped string) (newest corev1.Event, err error) {
	events, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(about)).String(),
	})
	if err != nil {
		return newest, fmt.Errorf("list Events: %w", err)
	}
	for _, event := range events.Items {
		if event.Type == corev1.EventTypeWarning && event.Reason != skipped && !last(&event).Before(last(&newest)) {
			newest = event
		}
	}
	return newest, nil
}

// last returns when an Event was last observed. Recorders of events.k8s.io write a series or only one time.
func last(event *corev1.Event) time.Time {
	observed := event.LastTimestamp.Time
	if event.EventTime.After(observed) {
		observed = event.EventTime.Time
	}
	if event.Series != nil && event.Series.LastObservedTime.After(observed) {
		observed = event.Series.LastObservedTime.Time
	}
	return observed
}
