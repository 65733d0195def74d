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

// synced waits for caches to sync and reports whether they did. client-go logs one line per cache, two dozen at every
// start. They are demoted to --log-level=debug, where they show which cache does not sync.
func synced(ctx context.Context, what string, handled ...cache.DoneChecker) bool {
	return cache.WaitFor(klog.NewContext(ctx, klog.FromContext(ctx).V(2)), what, handled...)
}

// EventCaches is the reason of a Kubernetes Event on the agent's own pod: the caches of the coordinator cannot sync.
const EventCaches = "CachesNotSynced"

// syncTimeout is how long a coordinator waits for its caches before it reports the failing requests.
const syncTimeout = 2 * time.Minute

// reportLacking reports the failing requests that keep the coordinator's caches, or a part of them, from syncing.
func (a *assembly) reportLacking(ctx context.Context, what, lacking string) {
	klog.FromContext(ctx).Error(nil, "Failed to sync caches", "of", what, "failing", lacking)
	a.recorder.Event(a.self(), corev1.EventTypeWarning, EventCaches,
		reconcile.EventMessage(fmt.Sprintf("Caches of %s cannot sync: %s. Check the RBAC rules of the agents' ServiceAccount (lateen install --apply restores them)", what, lacking)))
}
