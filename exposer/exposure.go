package exposer

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Ensure creates missing objects, the mover pod last. If it must wait, it returns a message; an event of the object
// waited for triggers the next reconcile. It adopts existing objects of the same custom resource. It returns a
// TerminalError if the API server calls an object invalid (422), or if the source does not exist. Most other errors
// may pass.
func (e *Exposer) Ensure(ctx context.Context, move objects.MoverSpec) (waits string, err error) {
	if e.Refresh != nil {
		e.Refresh(ctx)
	}
	settings := e.current()
	var size resource.Quantity
	if move.Source.Snapshot != nil {
		waits, size, err = e.handOver(ctx, move)
		if err != nil || waits != "" {
			return waits, err
		}
	}
	info, err := e.volumeInfo(ctx, move)
	if err != nil {
		return "", err
	}
	if !size.IsZero() {
		info.Size = size
	}
	template, ok := e.Templates[info.OS]
	if !ok {
		return "", &TerminalError{fmt.Errorf("find mover template for %s nodes: no DaemonSet of node-agents exists for them", info.OS)}
	}
	copies, err := e.copies(ctx, move, info)
	if err != nil {
		return "", err
	}
	plan := objects.PlanOf(move, info, template, settings)
	for _, want := range plan.Claims {
		claim, waits, err := e.ensureClaim(ctx, want)
		if err != nil || waits != "" {
			return waits, err
		}
		if claim.Name != move.Name {
			continue // a cache
		}
		// The claim owns the copies, so they are created after it. A driver that was faster retries.
		for _, ensure := range copies {
			if err := ensure(ctx, claim); err != nil {
				return "", err
			}
		}
	}
	return "", e.ensurePod(ctx, plan.Pod, settings.PriorityClass)
}

// CleanUp deletes the found objects, and no recreated object of the same name. For a snapshot it deletes both pairs
// of VolumeSnapshot and content as far as possible. waits says what blocks it; empty means that nothing is left.
func (e *Exposer) CleanUp(ctx context.Context, move objects.MoverSpec, found Existing) (waits string, err error) {
	if err := e.DeleteMover(ctx, found); err != nil {
		return "", err
	}
	for _, claim := range found.Claims {
		if err := e.removeClaim(ctx, claim); err != nil {
			return "", err
		}
	}
	if move.Source.Snapshot == nil {
		return "", nil
	}
	return e.cleanSnapshots(ctx, move, found.HandedOver)
}
