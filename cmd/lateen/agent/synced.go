package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/reconcile"
)

// synced waits until caches have what they are to have, and tells whether they do. client-go has a line for each of
// them, two dozen at every start: they are for who looks for the one that does not come, at --log-level=debug.
func synced(ctx context.Context, what string, handled ...cache.DoneChecker) bool {
	return cache.WaitFor(klog.NewContext(ctx, klog.FromContext(ctx).V(2)), what, handled...)
}

// EventCaches is the reason of a Kubernetes Event on the agent's own pod: what it watches as coordinator cannot be listed.
const EventCaches = "CachesNotSynced"

// syncTimeout is how long a coordinator waits for what it watches before it says so.
const syncTimeout = 2 * time.Minute

// reportLacking says which requests keep the caches of a coordinator, or of a part of it, from being complete.
func (p *assembly) reportLacking(ctx context.Context, what, lacking string) {
	klog.FromContext(ctx).Error(nil, "Failed to sync caches", "of", what, "failing", lacking)
	p.recorder.Event(p.self(), corev1.EventTypeWarning, EventCaches,
		reconcile.EventMessage(fmt.Sprintf("%s cannot work, because its caches cannot be filled: %s. Check the rights of the agents' ServiceAccount (lateen install --apply sets them)", what, lacking)))
}
