package agent

import (
	"cmp"
	"context"
	"time"

	"k8s.io/klog/v2"
)

const (
	// doneInterval is the interval between two passes of labelDone.
	doneInterval = 10 * time.Minute
	// donePause is the pause between two labels. Every agent receives the change of a resource.
	donePause = 200 * time.Millisecond
)

// labelDone labels, until the term ends, what other agents finished. A resource must be settled in two passes: after it
// became terminal, Velero's agent still cleans up.
func (p *assembly) labelDone(ctx context.Context, kinds []kind) {
	before := map[string]bool{}
	for p.sleep(ctx, cmp.Or(p.OrphanSweep, doneInterval)) {
		now := map[string]bool{}
		for _, k := range kinds {
			for _, key := range k.settled() {
				name := k.name() + "/" + key
				now[name] = true
				if !before[name] {
					continue
				}
				if err := k.labelDone(ctx, key); err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).Error(err, "Failed to label a finished transfer", "kind", k.name(), "object", key)
				}
				if !p.sleep(ctx, donePause) {
					return
				}
			}
		}
		before = now
	}
}

// sleep returns false if the context ends first.
func (p *assembly) sleep(ctx context.Context, d time.Duration) bool {
	timer := p.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}
