package agent

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/reconcile"
)

// identityLength is how many random characters tell the processes of one node apart.
const identityLength = 8

// absence is how long a node's agent may be gone before the coordinator stands in for it.
const absence = time.Minute

// lead is what an agent knows of the fleet while it coordinates, and that it does. It is empty otherwise.
type lead struct {
	lock   sync.RWMutex
	agents *reconcile.Agents // nil while this agent does not coordinate
}

func (l *lead) set(agents *reconcile.Agents) {
	l.lock.Lock()
	defer l.lock.Unlock()
	l.agents = agents
}

func (l *lead) current() *reconcile.Agents {
	l.lock.RLock()
	defer l.lock.RUnlock()
	return l.agents
}

// Leads implements transfer.Fleet.
func (l *lead) Leads() bool { return l.current() != nil }

// Absent implements transfer.Fleet.
func (l *lead) Absent(node string) bool {
	agents := l.current()
	return agents != nil && agents.Absent(node)
}

// Veleros implements transfer.Fleet.
func (l *lead) Veleros(node string) bool {
	agents := l.current()
	return agents != nil && agents.Veleros(node)
}

// Lost implements transfer.Fleet.
func (l *lead) Lost(node string) bool {
	agents := l.current()
	return agents != nil && agents.Lost(node)
}

// coordinate is a candidate for the Lease, and the coordinator while it has it. Its name is that of this
// process, or one that is started again would take the term of the one before for its own. A container is started again in
// its pod only once the one before has ended, whose Lease then is free at once.
func (p *parts) coordinate(ctx context.Context, kinds []kind) error {
	options := p.Election
	options.Client, options.Namespace, options.Name = p.clients.lease, p.Config.Namespace, deploy.CoordinatorLease
	options.Identity = p.Config.NodeName + "_"
	if p.Config.PodUID != "" {
		options.Identity += p.Config.PodUID + "_"
		options.Former = options.Identity
	}
	options.Identity += rand.String(identityLength)
	options.Clock = p.Clock
	candidate, err := reconcile.NewCoordinator(options)
	if err != nil {
		return fmt.Errorf("stand for coordinator: %w", err)
	}
	return candidate.Run(ctx, func(ctx context.Context) {
		if err := p.serve(ctx, kinds); err != nil {
			klog.FromContext(ctx).Error(err, "Coordinate")
		}
	})
}

// serve is one term: what only a coordinator watches is watched first, then it takes over what belongs to
// no node, and gives it back when the term ends. A term whose caches are not complete in time is given up: another
// agent may be able to list what this one is not.
func (p *parts) serve(ctx context.Context, kinds []kind) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	term, err := informers.NewTerm(p.clients.kube, selection(p.Config))
	if err != nil {
		return fmt.Errorf("prepare caches of the coordinator: %w", err)
	}
	nodes := informers.NewNodes(ctx, p.clients.kube)
	defer nodes.Wait()
	agents := reconcile.NewAgents(cmp.Or(p.Absence, absence), p.Clock, nodes, func(node string) {
		for _, k := range kinds {
			k.enqueueNode(node)
		}
	})
	handled, err := p.wireTerm(term, kinds, agents)
	if err != nil {
		return err
	}
	running := make(chan struct{})
	go func() {
		defer close(running)
		var both sync.WaitGroup
		both.Go(func() { term.Run(ctx) })
		both.Go(func() { p.snapshots.Run(ctx) })
		both.Wait()
	}()
	defer func() { end(); <-running }()
	inTime, stop := context.WithTimeout(ctx, cmp.Or(p.SyncTimeout, syncTimeout))
	defer stop()
	if !synced(inTime, "caches of the coordinator", handled...) {
		if ctx.Err() == nil {
			p.reportLacking(ctx, "the coordinator", term.Lacking())
		}
		return nil
	}
	agents.Begin()
	p.caches.SetTerm(term)
	p.lead.set(agents)
	defer func() { p.coordination.Leads(false); p.lead.set(nil); p.caches.SetTerm(nil); agents.End() }()
	for _, k := range kinds {
		k.enqueueUnsettled()
	}
	maintained := make(chan error, 1)
	go func() { maintained <- p.maintain(ctx, func() { p.coordination.Leads(true) }, end) }()
	p.sweeper(ctx, kinds).Run(ctx)
	return <-maintained
}

func (p *parts) wireTerm(term *informers.Term, kinds []kind, agents *reconcile.Agents) ([]cache.DoneChecker, error) {
	handled, err := term.Agents.Handle(func(pod *corev1.Pod) {
		if _, exists := term.Agents.Get(informers.Key(pod)); exists {
			agents.Saw(pod)
		} else {
			agents.Gone(pod)
		}
	})
	if err != nil {
		return nil, err
	}
	classes, err := term.Classes.Handle(func(class *storagev1.StorageClass) { p.targets.ClassChanged(class.Name) })
	if err != nil {
		return nil, err
	}
	all := []cache.DoneChecker{handled, classes}
	for _, k := range kinds {
		done, err := k.wireTerm(p.caches, term)
		if err != nil {
			return nil, err
		}
		all = append(all, done...)
	}
	return all, nil
}
