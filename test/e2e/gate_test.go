package e2e

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/node"
)

// gated runs pods that have passed a gate.
type gated struct {
	runner node.Runner
	gate   *gate
}

func (g gated) Run(ctx context.Context, pod *corev1.Pod, host node.Host) node.Result {
	g.gate.pass(ctx)
	return g.runner.Run(ctx, pod, host)
}

// gate holds pods back while it is shut: they run and do nothing yet. The zero gate is open.
type gate struct {
	lock   sync.Mutex
	opened chan struct{} // nil while it is open
}

func (g *gate) shut() {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.opened = make(chan struct{})
}

func (g *gate) open() {
	g.lock.Lock()
	defer g.lock.Unlock()
	close(g.opened)
	g.opened = nil
}

func (g *gate) pass(ctx context.Context) {
	g.lock.Lock()
	opened := g.opened
	g.lock.Unlock()
	if opened == nil {
		return
	}
	select {
	case <-opened:
	case <-ctx.Done():
	}
}
