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

// WatchOptions configure Follow and Read.
type WatchOptions struct {
	Namespace   string // of Velero
	Clock       clock.Clock
	MinInterval time.Duration // minimum time between two drawings
	MaxInterval time.Duration // maximum time between two drawings: the ages on screen grow without a change
	SyncTimeout time.Duration // limit for the first read of all resources
}

// Read reads a cluster once, with the additional objects about one reference if it is not empty. It omits a resource
// that cannot be read. The error means that no resource could be read.
func (c *Clients) Read(ctx context.Context, how WatchOptions, of diagnose.Reference) (*diagnose.Snapshot, error) {
	return c.read(ctx, how, c.sources(how.Namespace), of)
}

func (c *Clients) read(ctx context.Context, how WatchOptions, first []source, of diagnose.Reference) (snapshot *diagnose.Snapshot, err error) {
	err = c.watch(ctx, how, first, func(ctx context.Context, all *watches) error {
		snapshot = all.snapshot(ctx, how, of)
		return nil
	})
	return snapshot, err
}

// Follow draws a cluster until the context ends, which is no error. It draws after the first read of all resources,
// and then after each change. It lists each resource once and then watches it. The error means that the first read
// failed for all resources or timed out, or it comes from draw.
func (c *Clients) Follow(ctx context.Context, how WatchOptions, draw func(*diagnose.Snapshot) error) error {
	return c.follow(ctx, how, c.sources(how.Namespace), draw)
}

func (c *Clients) follow(ctx context.Context, how WatchOptions, first []source, draw func(*diagnose.Snapshot) error) error {
	return c.watch(ctx, how, first, func(ctx context.Context, all *watches) error {
		for ctx.Err() == nil {
			all.drain()
			if snapshot := all.snapshot(ctx, how, diagnose.Reference{}); ctx.Err() == nil {
				if err := draw(snapshot); err != nil {
					return fmt.Errorf("print status: %w", err)
				}
				all.pause(ctx, how)
			}
		}
		return nil
	})
}

// watch calls use while it watches the sources, after each of them was read or failed.
func (c *Clients) watch(ctx context.Context, how WatchOptions, first []source, use func(context.Context, *watches) error) error {
	ctx, stop := context.WithCancel(ctx)
	all := &watches{Clients: c, changed: make(chan struct{}, 1), dependencies: map[diagnose.Dependency]*watched{}}
	defer all.running.Wait()
	defer stop()
	for _, one := range first {
		all.first = append(all.first, all.start(ctx, one))
	}
	if err := all.answered(ctx, how); err != nil {
		return err
	}
	return use(ctx, all)
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

// snapshot returns the current objects of the sources and of what their transfers, or a reference, depend on.
func (w *watches) snapshot(ctx context.Context, how WatchOptions, of diagnose.Reference) *diagnose.Snapshot {
	first := w.gather(how, w.first)
	dependencies := first.Dependencies()
	if of != (diagnose.Reference{}) {
		dependencies = append(dependencies, first.About(of)...)
	}
	wanted := slices.Clone(w.first)
	for _, dependency := range dependencies {
		if w.dependencies[dependency] == nil {
			w.dependencies[dependency] = w.start(ctx, w.dependency(dependency))
		}
		wanted = append(wanted, w.dependencies[dependency])
	}
	bounded, cancel := context.WithTimeout(ctx, how.SyncTimeout)
	defer cancel()
	for _, one := range wanted {
		one.wait(bounded)
	}
	return w.gather(how, wanted)
}

func (w *watches) gather(how WatchOptions, of []*watched) *diagnose.Snapshot {
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
