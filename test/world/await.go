package world

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// seenBytes is how much of the last seen object an error tells.
const seenBytes = 4000

// Patience bounds what tests wait for. It only guards against hanging: what has to be quick is measured, and what cannot
// come any more is not waited for.
const Patience = 2 * time.Minute

// await reads watcher until done says so of an object, and returns that object. It stops the watcher. The
// error has the last object that was seen. An object that is deleted is an error, and so is one that never will be as
// wanted: each of hopeless says why, or is nil.
func await[T runtime.Object](
	ctx context.Context, watcher watch.Interface, done func(T) bool, terminal ...func(T) error,
) (T, error) {
	defer watcher.Stop()
	var last, none T
	seen := "nothing was seen"
	for {
		select {
		case <-ctx.Done():
			return none, fmt.Errorf("%w; %s", context.Cause(ctx), seen)
		case event, open := <-watcher.ResultChan():
			if !open {
				return none, fmt.Errorf("the watch ended; %s", seen)
			}
			object, ok := event.Object.(T)
			if !ok {
				return none, fmt.Errorf("watch for %T: %w", last, apierrors.FromObject(event.Object))
			}
			last, seen = object, "last seen: "+describe(object)
			if event.Type == watch.Deleted {
				return none, fmt.Errorf("it was deleted; %s", seen)
			}
			if done(object) {
				return object, nil
			}
			for _, why := range terminal {
				if err := why(object); err != nil {
					return none, fmt.Errorf("%w; %s", err, seen)
				}
			}
		}
	}
}

// describe is the object as JSON, cut where it gets long.
func describe(object runtime.Object) string {
	text, err := json.Marshal(object)
	if err != nil {
		return err.Error()
	}
	return string(text[:min(len(text), seenBytes)])
}

// awaitDeletion reads watcher, which began after what exists was listed, until an object is deleted. It stops
// the watcher.
func awaitDeletion(ctx context.Context, watcher watch.Interface, what string) error {
	defer watcher.Stop()
	seen := "it did not change"
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the end of %s: %w; %s", what, context.Cause(ctx), seen)
		case event, open := <-watcher.ResultChan():
			if !open {
				return fmt.Errorf("wait for the end of %s: the watch ended; %s", what, seen)
			}
			if event.Type == watch.Deleted {
				return nil
			}
			if event.Type == watch.Error {
				return fmt.Errorf("wait for the end of %s: %w", what, apierrors.FromObject(event.Object))
			}
			seen = "last seen: " + describe(event.Object)
		}
	}
}
