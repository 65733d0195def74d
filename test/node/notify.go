package node

import (
	"context"
	"fmt"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// notifier notifies all waiters of a node about changes in directories. All share one watch, because the kernel grants
// only a few (fs.inotify.max_user_instances: 128).
type notifier struct {
	lock    sync.Mutex
	watcher *fsnotify.Watcher // nil before the first use
	changed chan struct{}     // closed and replaced at each event
}

// follow watches a directory from now on. The first call starts the watch through beside.
func (n *notifier) follow(dir string, beside func(func(context.Context))) error {
	n.lock.Lock()
	defer n.lock.Unlock()
	if n.watcher == nil {
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("watch directories: %w", err)
		}
		n.watcher, n.changed = watcher, make(chan struct{})
		beside(func(ctx context.Context) { n.run(ctx, watcher) })
	}
	return n.watcher.Add(dir)
}

// next returns a channel that closes at the next event. Call it before the check of the file.
func (n *notifier) next() <-chan struct{} {
	n.lock.Lock()
	defer n.lock.Unlock()
	return n.changed
}

func (n *notifier) run(ctx context.Context, watcher *fsnotify.Watcher) {
	defer watcher.Close()
	for {
		select {
		case <-watcher.Events:
		case <-watcher.Errors: //nolint:errcheck // after an overflow, each waiter checks its file again
		case <-ctx.Done():
			return
		}
		n.lock.Lock()
		close(n.changed)
		n.changed = make(chan struct{})
		n.lock.Unlock()
	}
}
