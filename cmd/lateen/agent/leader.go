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
	"github.com/lateen-project/lateen/reconcile/leader"
)

// identityLength is the number of random characters that distinguish the processes of one node.
const identityLength = 8

// agentTimeout is how long a node may be without a Ready agent before the coordinator acts for it.
const agentTimeout = time.Minute

// candidate returns this process as a candidate of the election. Its identity is unique to this process: otherwise, a
// restarted process mistakes the term of its predecessor for its own. The kubelet restarts a container only after the
// previous one has ended. Therefore, a Lease held under the prefix Former is free at once.
func (a *assembly) candidate() (*leader.Coordinator, error) {
	options := a.Election
	options.Client, options.Namespace, options.Name = a.clients.lease, a.Flags.Namespace, deploy.CoordinatorLease
	options.Identity = a.Flags.NodeName + "_"
	if a.Flags.PodUID != "" {
		options.Identity += a.Flags.PodUID + "_"
		options.Former = options.Identity
	}
	options.Identity += cmp.Or(a.Process, rand.String(identityLength))
	options.Clock, options.Agents = a.Clock, a.startup.Agents
	candidate, err := leader.NewCoordinator(options)
	if err != nil {
		return nil, fmt.Errorf("prepare coordinator election: %w", err)
	}
	return candidate, nil
}

// coordinate campaigns for the Lease and runs a term while this agent holds it.
func (a *assembly) coordinate(ctx context.Context, candidate *leader.Coordinator, kinds []kind) error {
	return candidate.Run(ctx, func(ctx context.Context) {
		if err := a.runTerm(ctx, kinds); err != nil {
			klog.FromContext(ctx).Error(err, "Coordinator term failed")
		}
	})
}

// runTerm runs one term. It first syncs the caches that only a coordinator has. If they do not sync in time, it gives the
// term up: another agent may be able to list these resources.
func (a *assembly) runTerm(ctx context.Context, kinds []kind) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	term, err := informers.NewCoordinatorCaches(a.clients.kube, Selectors(a.Flags))
	if err != nil {
		return fmt.Errorf("create caches of the coordinator: %w", err)
	}
	nodes := informers.NewNodes(ctx, a.clients.kube)
	defer func() { end(); nodes.Wait() }() // also on a return before the term began
	agents := a.agentTracker(nodes, kinds)
	handled, err := a.addTermHandlers(term, kinds, agents)
	if err != nil {
		return err
	}
	running := make(chan struct{})
	go func() {
		defer close(running)
		var both sync.WaitGroup
		both.Go(func() { term.Run(ctx) })
		both.Go(func() { a.snapshots.Run(ctx) })
		both.Wait()
	}()
	defer func() { end(); <-running }()
	inTime, stop := context.WithTimeout(ctx, cmp.Or(a.SyncTimeout, syncTimeout))
	defer stop()
	if !synced(inTime, "caches of the coordinator", handled...) {
		if ctx.Err() == nil {
			a.reportLacking(ctx, "the coordinator", term.Lacking())
		}
		return nil
	}
	return a.lead(ctx, end, kinds, term, agents)
}

// lead acts for resources without a node until the term ends. The caches of the term are synced. end ends the term.
func (a *assembly) lead(ctx context.Context, end func(), kinds []kind, term *informers.CoordinatorCaches, agents *leader.AgentTracker) error {
	agents.Start()
	a.preparing.SetNodes(agents.Nodes())
	a.caches.SetCoordinator(term)
	a.leadership.agents.Store(agents)
	defer func() {
		a.coordination.SetCoordinator(false)
		a.leadership.agents.Store(nil)
		a.caches.SetCoordinator(nil)
		agents.Stop()
		for _, k := range kinds { // the caches of the term may have shown objects whose deletion no event reports any more
			k.enqueueUnsettled()
		}
	}()
	for _, k := range kinds {
		k.enqueueUnsettled()
	}
	maintained := make(chan error, 1)
	go func() { maintained <- a.maintain(ctx, func() { a.coordination.SetCoordinator(true) }, end) }()
	var finishing sync.WaitGroup
	finishing.Go(func() { a.labelDone(ctx, kinds) })
	finishing.Go(func() { a.deleteFinished(ctx) })
	defer finishing.Wait()
	a.sweeper(ctx, kinds).Run(ctx)
	return <-maintained
}

// agentTracker enqueues what depends on the agent of a node when its state changes.
func (a *assembly) agentTracker(nodes leader.Nodes, kinds []kind) *leader.AgentTracker {
	agents := leader.NewAgentTracker(cmp.Or(a.AgentTimeout, agentTimeout), a.Clock, nodes, func(node string) {
		for _, k := range kinds {
			k.enqueueNode(node)
		}
	})
	agents.Returned = func(node string) {
		a.preparing.SetNodes(agents.Nodes())
		for _, k := range kinds {
			k.agentReturned(node)
		}
	}
	return agents
}

func (a *assembly) addTermHandlers(term *informers.CoordinatorCaches, kinds []kind, agents *leader.AgentTracker) ([]cache.DoneChecker, error) {
	handled, err := term.Agents.AddHandler(func(pod *corev1.Pod) {
		if _, exists := term.Agents.Get(informers.Key(pod)); exists {
			agents.Update(pod)
		} else {
			agents.Delete(pod)
		}
	})
	if err != nil {
		return nil, err
	}
	classes, err := term.Classes.AddHandler(func(class *storagev1.StorageClass) { a.targets.ClassChanged(class.Name) })
	if err != nil {
		return nil, err
	}
	all := []cache.DoneChecker{handled, classes}
	for _, k := range kinds {
		done, err := k.addTermHandlers(a.caches, term)
		if err != nil {
			return nil, err
		}
		all = append(all, done...)
	}
	return all, nil
}
