package agent

import (
	"io"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/leader"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// stepGrace is how long running reconciles may continue after SIGTERM. The process must exit within 5 s.
const stepGrace = 4 * time.Second

// Options configure an agent.
type Options struct {
	Flags   config.Options
	Rest    *rest.Config // QPS and burst are replaced by those of Flags
	Metrics *metrics.Metrics
	Limits  transfer.Limits
	Clock   clock.WithTickerAndDelayedExecution
	Log     io.Writer // receives the logs of movers
	Server  *Server

	// the bounds of maintenance; those of Flags take precedence, and 0 selects the defaults
	Maintenance maintenance.Policy

	Election leader.Options // the durations of the election; 0 selects the defaults
	// after this time without a Ready agent on a node, the coordinator acts for it; 0: 1 min
	AgentTimeout time.Duration

	SyncTimeout time.Duration // limit for a coordinator's caches to sync, after which it releases its Lease; 0: 2 min

	OrphanSweep time.Duration // interval between two sweeps of a coordinator; 0: 10 min

	// For a simulation, which must be repeatable.
	Process  string                                             // distinguishes the processes of one node; empty: random
	Queue    func(name string) workqueue.TypedInterface[string] // makes the queue of a controller; nil: client-go's
	Prepared int                                                // transfers that an agent prepares at once; 0: as package capacity says
}

// queue returns the queue of a controller; nil is client-go's.
func (o *Options) queue(name string) workqueue.TypedInterface[string] {
	if o.Queue == nil {
		return nil
	}
	return o.Queue(name)
}

// assembly holds what the construction of the agent needs.
type assembly struct {
	Options
	clients    *clients
	startup    *config.Startup
	caches     *informers.Caches
	recorder   recorder
	leadership *leadership
	snapshots  *informers.Snapshots // watched only while this agent coordinates
	targets    *informers.Targets
	targetPods *informers.TargetPods
	restored   *informers.Targets
	exposing   *exposer.Exposer
	class      *moverClass
	preparing  *capacity.Preparation

	coordination *metrics.Coordination
	maintenance  *metrics.Maintenance
}

// Selectors returns what an agent watches.
func Selectors(options config.Options) informers.Selectors {
	return informers.Selectors{
		Namespace:     options.Namespace,
		Node:          options.NodeName,
		OwnedLabels:   api.LabelMover + "=true",
		CreatedLabels: api.LabelExposer + "=" + objects.LabelValue(options.NodeName),
		AgentLabels:   api.LabelRole + "=" + api.RoleNodeAgent,
	}
}

// leadership is an agent's view of the fleet while it coordinates. It is empty otherwise.
type leadership struct {
	agents atomic.Pointer[leader.AgentTracker] // nil while this agent does not coordinate
}

// IsCoordinator implements transfer.Fleet.
func (l *leadership) IsCoordinator() bool { return l.agents.Load() != nil }

// Unavailable implements transfer.Fleet.
func (l *leadership) Unavailable(node string) bool {
	agents := l.agents.Load()
	return agents != nil && agents.Unavailable(node)
}

// RunsVelero implements transfer.Fleet.
func (l *leadership) RunsVelero(node string) bool {
	agents := l.agents.Load()
	return agents != nil && agents.RunsVelero(node)
}

// Lost implements transfer.Fleet.
func (l *leadership) Lost(node string) bool {
	agents := l.agents.Load()
	return agents != nil && agents.Lost(node)
}
