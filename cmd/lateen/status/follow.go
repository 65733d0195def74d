package status

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
)

// WatchOptions configure Follow.
type WatchOptions struct {
	Namespace   string // of Velero
	Clock       clock.Clock
	MinInterval time.Duration // minimum time between two drawings
	MaxInterval time.Duration // maximum time between two drawings: the ages on screen grow without a change
	SyncTimeout time.Duration // limit for the first read of all resources
}

// Follow draws a cluster until the context ends, which is no error. It draws after the first read of all resources,
// and then after each change. It lists each resource once and then watches it. The error means that the first read
// failed for all resources or timed out, or it comes from draw.
func (c *Clients) Follow(ctx context.Context, how WatchOptions, draw func(*diagnose.Snapshot) error) error {
	return c.follow(ctx, how, c.sources(how.Namespace), draw)
}

func (c *Clients) follow(ctx context.Context, how WatchOptions, first []source, draw func(*diagnose.Snapshot) error) error {
	ctx, stop := context.WithCancel(ctx)
	all := &watches{kube: c.kube, changed: make(chan struct{}, 1), dependencies: map[diagnose.Dependency]*watched{}}
	defer all.running.Wait()
	defer stop()
	for _, one := range first {
		all.first = append(all.first, all.start(ctx, one))
	}
	if err := all.answered(ctx, how); err != nil {
		return err
	}
	for ctx.Err() == nil {
		all.drain()
		snapshot := all.snapshot(how, all.first)
		wanted := slices.Clone(all.first)
		for _, w := range snapshot.Dependencies() {
			if all.dependencies[w] == nil {
				all.dependencies[w] = all.start(ctx, c.dependency(w))
			}
			wanted = append(wanted, all.dependencies[w])
		}
		for _, one := range wanted {
			one.wait(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err := draw(all.snapshot(how, wanted)); err != nil {
			return fmt.Errorf("print status: %w", err)
		}
		all.pause(ctx, how)
	}
	return nil
}

// answered waits until each of the first sources was read or failed. The error means that all failed, or that the
// time is up.
func (w *watches) answered(ctx context.Context, how WatchOptions) error {
	bounded, cancel := context.WithTimeout(ctx, how.SyncTimeout)
	defer cancel()
	for _, one := range w.first {
		one.wait(bounded)
	}
	if ctx.Err() == nil && bounded.Err() != nil {
		return fmt.Errorf("read cluster: no response from the API server within %s; check that it is running and reachable", how.SyncTimeout)
	}
	for _, one := range w.first {
		if one.failure() == nil {
			return nil
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("list %s: %w", w.first[0].resource, w.first[0].failure())
}

// snapshot returns a snapshot of the current objects of these sources.
func (w *watches) snapshot(how WatchOptions, of []*watched) *diagnose.Snapshot {
	var objects []runtime.Object
	var unreadable []view.Unreadable
	for _, one := range of {
		objects = append(objects, one.objects()...)
		if err := one.failure(); err != nil {
			unreadable = append(unreadable, one.unreadable(err))
		}
	}
	return diagnose.Gather(how.Namespace, how.Clock.Now(), objects, unreadable)
}

// pause waits until the next drawing is due.
func (w *watches) pause(ctx context.Context, how WatchOptions) {
	idle := how.Clock.NewTimer(how.MaxInterval)
	defer idle.Stop()
	pace := how.Clock.NewTimer(how.MinInterval)
	defer pace.Stop()
	select {
	case <-ctx.Done():
	case <-pace.C():
	}
	select {
	case <-ctx.Done():
	case <-w.changed:
	case <-idle.C():
	}
}
