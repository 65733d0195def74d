package agent

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/reconcile"
)

func TestReportOnceEventsAreKeptOncePerTransfer(t *testing.T) {
	client := fake.NewClientset()
	requests := make(chan struct{}, 10)
	client.PrependReactor("*", "events", func(action clienttesting.Action) (handled bool, answer runtime.Object, err error) {
		defer func() { requests <- struct{}{} }()
		return clienttesting.ObjectReaction(client.Tracker())(action)
	})

	for _, node := range []string{"n1", "n2"} {
		events, flush := newRecorder(context.Background(), client, config.Options{Namespace: "velero", NodeName: node})
		for _, uid := range []types.UID{"u1", "u2"} {
			about := &corev1.ObjectReference{Kind: "DataDownload", Namespace: "velero", Name: "d-" + string(uid), UID: uid}
			events.Event(about, corev1.EventTypeNormal, reconcile.EventForeign, "for another one")
			events.Event(about, corev1.EventTypeWarning, reconcile.EventCleanUpWaits, "for the kubelet")
			events.Event(about, corev1.EventTypeNormal, reconcile.EventCompleted, "on "+node)
		}
		for range 6 {
			<-requests
		}
		flush()
	}
	kept, err := client.CoreV1().Events("velero").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	reasons := map[string]int{}
	for _, event := range kept.Items {
		reasons[event.Reason]++
	}
	require.Equal(t, map[string]int{reconcile.EventForeign: 2, reconcile.EventCleanUpWaits: 2, reconcile.EventCompleted: 4}, reasons)
}
