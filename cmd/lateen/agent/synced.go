package agent

import (
	"context"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// synced waits until caches have what they are to have, and tells whether they do. client-go has a line for each of
// them, two dozen at every start: they are for who looks for the one that does not come, at --log-level=debug.
func synced(ctx context.Context, what string, handled ...cache.DoneChecker) bool {
	return cache.WaitFor(klog.NewContext(ctx, klog.FromContext(ctx).V(2)), what, handled...)
}
