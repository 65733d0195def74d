package exposer

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/objects"
)

// event is an Event of a controller, last observed at that second.
func event(name string, about types.UID, kind, message string, at int64) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "velero", Name: name},
		InvolvedObject: corev1.ObjectReference{UID: about}, Type: kind, Reason: "Because", Message: message,
		LastTimestamp: metav1.Unix(at, 0),
	}
}

func TestDiagnosisNamesTheBlocker(t *testing.T) {
	pending := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "claim-uid"}}
	pending.Status.Phase = corev1.ClaimPending
	bound := pending.DeepCopy()
	bound.Status.Phase = corev1.ClaimBound
	starting := mover()
	starting.UID, starting.Spec.NodeName, starting.Status.Phase = "mover-uid", "n1", corev1.PodPending
	withoutNode := starting.DeepCopy()
	withoutNode.Spec.NodeName = ""
	newer := event("newer", "claim-uid", "Warning", "quota of the array", 3)
	single := event("single", "claim-uid", "Warning", "of the newer kind", 0)
	single.LastTimestamp, single.EventTime = metav1.Time{}, metav1.MicroTime{Time: metav1.Unix(4, 0).Time}
	series := event("series", "claim-uid", "Warning", "once more", 0)
	series.LastTimestamp, series.Series = metav1.Time{}, &corev1.EventSeries{LastObservedTime: metav1.MicroTime{Time: metav1.Unix(5, 0).Time}}
	unscheduled := event("unscheduled", "mover-uid", "Warning", "unbound claims", 0)
	unscheduled.Reason, unscheduled.LastTimestamp = "FailedScheduling", metav1.Time{}
	unscheduled.EventTime = metav1.NewMicroTime(metav1.Unix(7, 500_000_000).Time)
	claims := func(claims ...*corev1.PersistentVolumeClaim) Existing { return Existing{Claims: claims} }
	for name, test := range map[string]struct {
		found  Existing
		events []*corev1.Event
		want   string
	}{
		"nothing":                         {},
		"a claim without a word about it": {found: claims(pending), want: "claim b1 is Pending"},
		"a claim and its normal Events":   {found: claims(pending), events: []*corev1.Event{event("a", "claim-uid", "Normal", "waiting", 9)}, want: "claim b1 is Pending"},
		"a claim and the newest warning about it": {
			found: claims(pending), events: []*corev1.Event{newer, event("older", "claim-uid", "Warning", "no space", 1)},
			want: "claim b1 is Pending: Because: quota of the array",
		},
		"a claim and a warning with one time": {found: claims(pending), events: []*corev1.Event{newer, single}, want: "claim b1 is Pending: Because: of the newer kind"},
		"a claim and a repeated warning":      {found: claims(pending), events: []*corev1.Event{series, newer, single}, want: "claim b1 is Pending: Because: once more"},
		"no claim that has its volume":        {found: claims(bound), events: []*corev1.Event{newer}},
		"a volume that cannot be mounted": {
			found: Existing{Pod: starting, Claims: []*corev1.PersistentVolumeClaim{bound}}, events: []*corev1.Event{event("mount", "mover-uid", "Warning", "no such device", 1)},
			want: "mover pod b1 on node n1: Because: no such device",
		},
		"a volume that cannot be attached, and not that the pod had no node in the same second": {
			found: Existing{Pod: starting}, events: []*corev1.Event{unscheduled, event("attach", "mover-uid", "Warning", "no free slot", 7)},
			want: "mover pod b1 on node n1: Because: no free slot",
		},
		"no Events of a pod without a node: its status has the reason": {found: Existing{Pod: withoutNode}, events: []*corev1.Event{event("place", "mover-uid", "Warning", "no room", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			for _, event := range test.events {
				require.NoError(t, client.Tracker().Add(event))
			}
			require.Equal(t, test.want, exposed(client, objects.Settings{}).Diagnose(t.Context(), movement(), test.found))
			for _, action := range client.Actions() {
				list, ok := action.(clienttesting.ListActionImpl)
				require.True(t, ok, "a diagnosis only looks")
				require.Regexp(t, "^involvedObject.uid=(claim|mover)-uid$", list.ListRestrictions.Fields.String(), "all other events come along")
			}
		})
	}
}
