package agent

import "github.com/lateen-project/lateen/informers"

// siblings returns the unfinished restores into other volumes of the same pod. They are on the same node, or have
// none yet.
func (l *kindController[T]) siblings(object T) (found []T) {
	for _, name := range []string{l.transfers.Kind.Get(object).Node, ""} {
		for _, other := range l.resources.ByIndex(informers.ByNode, name) {
			if l.transfers.SharePod(object, other) {
				found = append(found, other)
			}
		}
	}
	return found
}

// enqueueSiblings enqueues the restores that may wait for this one after it changed or was deleted.
func (l *kindController[T]) enqueueSiblings(object T) {
	if !l.transfers.Kind.Restores || l.transfers.Kind.Rebinds {
		return
	}
	for _, other := range l.siblings(object) {
		if l.transfers.AwaitsSibling(other) {
			l.enqueue(informers.Key(other))
		}
	}
}
