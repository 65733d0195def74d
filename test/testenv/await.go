package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// seenBytes bounds the bytes of the last observed object in an error.
const seenBytes = 4000

// Patience bounds the waits of tests. It only guards against hanging. Tests measure durations, and end at once on a
// wrong terminal state.
const Patience = 2 * time.Minute

// await reads watcher until done accepts an object, and returns that object. It stops the watcher. The error contains
// the last observed object. A deleted object is an error. An object for which a function of terminal returns an error
// is one too, because it can never reach the wanted state.
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

// describe returns the object as JSON, truncated to seenBytes.
func describe(object runtime.Object) string {
	text, err := json.Marshal(object)
	if err != nil {
		return err.Error()
	}
	return string(text[:min(len(text), seenBytes)])
}

// awaitDeletion reads watcher until an object is deleted, and stops it. The watch must start at the version of a
// list.
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
