package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/reconcile/transfer"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
)

const (
	stopTime  = 10 * time.Second       // an agent may take, from SIGTERM on; 5 s on a machine that has nothing else to do
	downTime  = 700 * time.Millisecond // of a node's agent between two runs, at most
	verbosity = 2                      // of its log
)

// supervisor has an agent run on a node, as a kubelet does: when it ends, it is started again.
type supervisor struct {
	env    *env
	node   *node.Node
	number int // of those of the node
	random *rand.Rand
	log    io.WriteCloser
	stop   context.CancelFunc
	ended  chan struct{}

	lock sync.Mutex
	runs []*run // of this round; the last one is current
}

// run is one life of an agent.
type run struct {
	*fixture.Agent
	proxy *proxy
}

func (k *supervisor) open(ctx context.Context) (err error) {
	if k.log, err = os.Create(filepath.Join(k.env.logs, fmt.Sprintf("%s-%d.log", k.node.Name(), k.number))); err != nil {
		return err
	}
	ctx, k.stop = context.WithCancel(ctx)
	k.ended = make(chan struct{})
	first, err := k.start(ctx)
	if err != nil {
		return err
	}
	go func() {
		defer close(k.ended)
		k.keep(ctx, first)
	}()
	return nil
}

func (k *supervisor) close() error {
	k.stop()
	<-k.ended
	return k.log.Close()
}

// keep replaces the run that ends.
func (k *supervisor) keep(ctx context.Context, current *run) {
	for {
		select {
		case <-current.Ended():
			if err := current.Err(); err != nil && !current.proxy.isDead() && !k.env.plan.isActive() {
				k.env.history.violate("the agent of %s ended by itself in calm: %v", k.node.Name(), err)
			}
		case <-current.proxy.struck:
		case <-ctx.Done():
		}
		current.Cancel()
		select {
		case <-current.Ended():
		case <-time.After(stopTime):
			k.env.history.violate("the agent of %s does not end", k.node.Name())
			return
		}
		pause := time.NewTimer(time.Duration(k.random.Int64N(int64(downTime))))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
		var err error
		if current, err = k.start(ctx); err != nil {
			k.env.history.violate("the agent of %s cannot start: %v", k.node.Name(), err)
			return
		}
	}
}

// start begins a run, with delays as short as the protocol allows.
func (k *supervisor) start(ctx context.Context) (*run, error) {
	r := &run{proxy: newProxy(k.env.plan, rand.New(rand.NewPCG(k.random.Uint64(), k.random.Uint64())))}
	var err error
	r.Agent, err = k.env.Agent(ctx, k.node, k.log, fixture.Through(r.proxy.wrap), func(options *agent.Options) {
		options.Limits, options.Flags.StartupTimeout = limits(), 20*time.Second
		options.Election.Lease, options.Election.Renew = 2*time.Second, 1500*time.Millisecond
	})
	if err != nil {
		return nil, err
	}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(k.log), textlogger.Verbosity(verbosity)))
	logger.Info("Agent begins a life", "node", k.node.Name())
	r.Run(klog.NewContext(context.WithoutCancel(ctx), logger)) // before others can cancel it
	k.lock.Lock()
	defer k.lock.Unlock()
	k.runs = append(k.runs, r)
	return r, nil
}

// limits are those of transfers: short enough for each to be reached.
func limits() transfer.Limits {
	l := transfer.DefaultLimits()
	l.RestartDelay = 50 * time.Millisecond
	l.PrepareTimeout = 30 * time.Second
	l.CancelGrace = 5 * time.Second
	l.FirstProgress = 500 * time.Millisecond
	return l
}

// current is the run of now.
func (k *supervisor) current() *run {
	k.lock.Lock()
	defer k.lock.Unlock()
	return k.runs[len(k.runs)-1]
}

// reset forgets the runs of earlier rounds.
func (k *supervisor) reset() {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.runs = k.runs[len(k.runs)-1:]
}

// fallbacks is how often the agents of this round counted that the priority class was not in force. lost says that
// one of them was killed by the creation of a pod, before it could count anything about it.
func (k *supervisor) fallbacks() (sum int, lost bool, err error) {
	k.lock.Lock()
	defer k.lock.Unlock()
	for _, r := range k.runs {
		lost = lost || r.proxy.diedByPod()
		count, err := r.Metric("lateen_priority_class_fallbacks_total")
		if err != nil {
			return 0, lost, err
		}
		sum += count
	}
	return sum, lost, nil
}
