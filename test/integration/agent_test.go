package integration

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/leader"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// agentRun is an agent of an environment.
type agentRun struct {
	env      *env
	options  agent.Options
	cancel   context.CancelFunc
	ended    chan struct{}
	err      error // readable once ended is closed
	registry *prometheus.Registry
	movers   *safeBuffer // what it logged of movers
}

// start runs an agent as `lateen node-agent` assembles it.
func (s *env) start(changes ...func(*agent.Options)) *agentRun {
	s.Helper()
	r := s.assemble(changes...)
	r.run()
	return r
}

// assemble makes an agent that does not run yet. Delays are as short as the protocol allows.
func (s *env) assemble(changes ...func(*agent.Options)) *agentRun {
	s.Helper()
	own, err := plane.ServiceAccount(s.soon(), s.Namespace, deploy.ServiceAccountName)
	require.NoError(s, err)
	registry := prometheus.NewRegistry()
	server, err := agent.Listen("127.0.0.1:0", registry, false)
	require.NoError(s, err)
	s.Cleanup(func() { require.NoError(s, server.Close()) })
	r := &agentRun{env: s, ended: make(chan struct{}), registry: registry, movers: &safeBuffer{}}
	r.options = agent.Options{
		Flags: config.Options{
			Namespace: s.Namespace, NodeName: s.node.Name(), NodeAgentConfigMap: configMap, MoverTemplate: "daemonset",
			ResourceTimeout: time.Minute, Workers: 4, KubeAPIQPS: 500, KubeAPIBurst: 1000, StartupTimeout: time.Minute,
		},
		Rest: own, Metrics: metrics.New(registry, "test", s.node.Name()), Limits: transfer.DefaultLimits(),
		Clock: clock.RealClock{}, Log: r.movers, Server: server,
	}
	r.options.Limits.RestartDelay = 50 * time.Millisecond
	r.options.Limits.FirstProgress = 0 // movers are quick, and what writes of progress do is to be seen
	r.options.Election = leader.Options{
		Lease: 15 * time.Second, Renew: 10 * time.Second, Retry: 200 * time.Millisecond, Spread: time.Millisecond,
	}
	for _, change := range changes {
		change(&r.options)
	}
	return r
}

// run starts it. The end of the test ends it at the latest.
func (r *agentRun) run() {
	logger := ktesting.NewLogger(r.env.T, ktesting.NewConfig(ktesting.Verbosity(2)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.WithoutCancel(r.env.Context()), logger))
	r.cancel = cancel
	r.env.agents.Add(1)
	r.env.Cleanup(func() {
		cancel()
		<-r.ended
	})
	go func() {
		defer close(r.ended)
		if r.err = agent.Run(ctx, r.options); r.err != nil {
			logger.Error(r.err, "Agent ended")
		}
	}()
}

// stop ends the agent as SIGTERM does.
func (r *agentRun) stop() {
	r.env.Helper()
	r.cancel()
	r.wait()
	require.NoError(r.env, r.err)
}

// wait returns when the agent has ended by itself.
func (r *agentRun) wait() {
	r.env.Helper()
	select {
	case <-r.ended:
	case <-r.env.soon().Done():
		require.Fail(r.env, "the agent did not end")
	}
}

// metric is the sum of all series with these labels, of histograms how often they were observed; labels are
// given as name, value, name, value … What is counted here has whole values.
func (r *agentRun) metric(name string, labels ...string) int {
	r.env.Helper()
	families, err := r.registry.Gather()
	require.NoError(r.env, err)
	sum, found := 0, false
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, series := range family.GetMetric() {
			if has(series, labels) {
				found = true
				sum += int(series.GetCounter().GetValue()+series.GetGauge().GetValue()) + int(series.GetHistogram().GetSampleCount())
			}
		}
	}
	require.Truef(r.env, found, "no series %s %v", name, labels)
	return sum
}

func has(series *dto.Metric, labels []string) bool {
	values := map[string]string{}
	for _, pair := range series.GetLabel() {
		values[pair.GetName()] = pair.GetValue()
	}
	for i := 0; i < len(labels); i += 2 {
		if values[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// finished is how many transfers the agent has seen end like this.
func (r *agentRun) finished(phase, reason string) int {
	r.env.Helper()
	return r.metric("lateen_transfers_finished_total", "kind", "podvolumebackup", "phase", phase, "reason", reason)
}

// through sends the agent's requests through something that may spoil them.
func through(wrap transport.WrapperFunc) func(*agent.Options) {
	return func(options *agent.Options) {
		config := rest.CopyConfig(options.Rest)
		config.Wrap(wrap)
		options.Rest = config
	}
}

// safeBuffer is a buffer that several goroutines may use.
type safeBuffer struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.text.String()
}

func containsAll(text string, description ...string) bool {
	for _, word := range description {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}
