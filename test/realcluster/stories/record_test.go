package stories

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// record is what the API server saw of the objects of a play: the states of each, in order, and the reasons of its Events.
type record struct {
	lock   sync.Mutex
	states map[string][]string
	events map[string]bool
	gone   chan struct{} // closed when the claim and its volume are gone, or the volume is released and retained
}

func (r *record) add(object, state string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if all := r.states[object]; len(all) == 0 || all[len(all)-1] != state {
		r.states[object] = append(all, state)
	}
}

// follow passes the changes of objects to see until the context ends.
func follow(ctx context.Context, t *testing.T, open func(metav1.ListOptions) (apiwatch.Interface, error), selector string, see func(apiwatch.Event)) {
	t.Helper()
	watcher, err := open(metav1.ListOptions{FieldSelector: selector})
	require.NoError(t, err)
	go func() {
		defer watcher.Stop()
		for {
			select {
			case change, ok := <-watcher.ResultChan():
				if !ok {
					return
				}
				see(change)
			case <-ctx.Done():
				return
			}
		}
	}()
}

// watches records the claim of a play, its volume, and the Events of both and of the pod.
func (m moverPlay) watches(ctx context.Context, t *testing.T, client kubernetes.Interface) *record {
	t.Helper()
	r := &record{states: map[string][]string{}, events: map[string]bool{}, gone: make(chan struct{})}
	follow(ctx, t, func(options metav1.ListOptions) (apiwatch.Interface, error) {
		return client.CoreV1().PersistentVolumeClaims(playSpace).Watch(ctx, options)
	}, "metadata.name="+m.name, func(change apiwatch.Event) {
		claim, ok := change.Object.(*corev1.PersistentVolumeClaim)
		switch {
		case !ok:
		case change.Type == apiwatch.Deleted:
			r.add("claim", "gone")
			if m.pending {
				close(r.gone)
			}
		default:
			r.add("claim", fmt.Sprintf("%s deleting=%t", claim.Status.Phase, claim.DeletionTimestamp != nil))
		}
	})
	follow(ctx, t, func(options metav1.ListOptions) (apiwatch.Interface, error) {
		return client.CoreV1().PersistentVolumes().Watch(ctx, options)
	}, "", func(change apiwatch.Event) {
		volume, ok := change.Object.(*corev1.PersistentVolume)
		if !ok || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.Name != m.name {
			return
		}
		if change.Type == apiwatch.Deleted {
			r.add("volume", "gone")
			close(r.gone)
			return
		}
		state := fmt.Sprintf("%s deleting=%t", volume.Status.Phase, volume.DeletionTimestamp != nil)
		if volume.DeletionTimestamp == nil { // then provisioner and volume controller race for theirs
			finalizers := slices.DeleteFunc(slices.Sorted(slices.Values(volume.Finalizers)), func(finalizer string) bool {
				return strings.HasPrefix(finalizer, "external-attacher/") // The simulator attaches nothing.
			})
			state += fmt.Sprintf(" %s", finalizers)
		}
		r.add("volume", state)
	})
	before, err := client.CoreV1().Events(playSpace).List(ctx, metav1.ListOptions{}) // of a former run of the tests
	require.NoError(t, err)
	follow(ctx, t, func(options metav1.ListOptions) (apiwatch.Interface, error) {
		options.ResourceVersion = before.ResourceVersion
		return client.CoreV1().Events(playSpace).Watch(ctx, options)
	}, "involvedObject.name="+m.name, func(change apiwatch.Event) {
		event, ok := change.Object.(*corev1.Event)
		if !ok || leftOut(event) {
			return
		}
		r.lock.Lock()
		defer r.lock.Unlock()
		r.events[strings.Join([]string{event.InvolvedObject.Kind, event.Type, event.Reason}, " ")] = true
	})
	return r
}

// leftOut leaves out Events about other objects of the name, those of a kubelet that all is well, which the simulated node does
// not send, those of an attachment, which the simulator does not have, and those about a claim that waits for its pod, which depend
// on which of the two the volume controller, real on both, sees first.
func leftOut(event *corev1.Event) bool {
	return event.InvolvedObject.Kind == "Node" || event.Reason == "WaitForFirstConsumer" || event.Reason == "WaitForPodScheduled" ||
		event.Source.Component == "attachdetach-controller" ||
		event.Source.Component == "kubelet" && event.Type == corev1.EventTypeNormal
}
