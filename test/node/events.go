package node

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/test/testenv"
)

// eventSender sends the Events of a mover: one Event per reason, patched on each repetition.
type eventSender struct {
	client   kubernetes.Interface
	role     role
	transfer *testenv.Transfer
	host     Host
	said     map[string]*corev1.Event // by reason
}

// say sends an Event. A failure stops nothing, as in Velero's mover.
func (e *eventSender) say(ctx context.Context, reason, message string) {
	reported, err := e.send(ctx, reason, message)
	if err != nil {
		fmt.Fprintf(e.host.Log, "stand-in mover: send Event %s: %v\n", reason, err)
		return
	}
	e.said[reason] = reported
}

// fails returns the result of a mover whose data path failed.
func (e *eventSender) fails(why error) Result {
	fmt.Fprintln(e.host.Log, "stand-in mover:", why)
	return Result{ExitCode: 1, Message: fmt.Sprintf("Failed to run data path service for %s: %v", e.role.inResults(), why)}
}

func (e *eventSender) send(ctx context.Context, reason, message string) (*corev1.Event, error) {
	now := metav1.Now()
	events := e.client.CoreV1().Events(e.transfer.Namespace)
	if last := e.said[reason]; last != nil {
		patch, err := json.Marshal(map[string]any{"message": message, "count": last.Count + 1, "lastTimestamp": now})
		if err != nil {
			return nil, err
		}
		return events.Patch(ctx, last.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return events.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: e.transfer.Name + ".", Namespace: e.transfer.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: e.role.kind.Resource().GroupVersion().String(), Kind: string(e.role.kind),
			Namespace: e.transfer.Namespace, Name: e.transfer.Name, UID: e.transfer.UID,
		},
		Source: corev1.EventSource{Component: e.transfer.Name, Host: e.host.Node},
		Reason: reason, Message: message, Type: corev1.EventTypeNormal, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
}
