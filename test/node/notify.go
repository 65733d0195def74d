package node

import (
	"context"
	"fmt"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// news tells all who wait on a node for a file that something has happened in a directory. There is one watch for
// all, since the kernel grants few (fs.inotify.max_user_instances: 128).
type news struct {
	lock    sync.Mutex
	watcher *fsnotify.Watcher // nil: not needed yet
	changed chan struct{}     // closed, and made anew, at everything that happens
}

// follow hears of what happens in a directory from now on. The first one to call it begins the watch, by beside.
func (n *news) follow(dir string, beside func(func(context.Context))) error {
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

// next is closed when something happens; ask before looking.
func (n *news) next() <-chan struct{} {
	n.lock.Lock()
	defer n.lock.Unlock()
	return n.changed
}

func (n *news) run(ctx context.Context, watcher *fsnotify.Watcher) {
	defer watcher.Close()
	for {
		select {
		case <-watcher.Events:
		case <-watcher.Errors: //nolint:errcheck // events that were too many: who waits looks again
		case <-ctx.Done():
			return
		}
		n.lock.Lock()
		close(n.changed)
		n.changed = make(chan struct{})
		n.lock.Unlock()
	}
}
