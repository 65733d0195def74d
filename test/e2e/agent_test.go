package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// agentRun is an agent that runs.
type agentRun struct {
	stop  context.CancelFunc
	ended chan struct{}
	err   error // once it has ended

	registry *prometheus.Registry
}

// startAgent runs the agent with the rights that package deploy gives it and no others.
func (s *env) startAgent(t *testing.T, change ...func(*agent.Options)) {
	t.Helper()
	own, err := s.plane.ServiceAccount(s.ctx, s.Namespace, deploy.ServiceAccountName)
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	server, err := agent.Listen("127.0.0.1:0", registry, false)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	options := agent.Options{
		Flags: config.Options{
			Namespace: s.Namespace, NodeName: nodeName, NodeAgentConfigMap: configMap, MoverTemplate: "daemonset",
			ResourceTimeout: time.Minute, Workers: 4, KubeAPIQPS: 100, KubeAPIBurst: 200, StartupTimeout: time.Minute,
		},
		Rest: own, Metrics: metrics.New(registry, "test", nodeName),
		Limits: transfer.DefaultLimits(), Clock: clock.RealClock{}, Log: t.Output(), Server: server,
	}
	for _, alter := range change {
		alter(&options)
	}
	running, stop := context.WithCancel(s.ctx)
	s.agent = &agentRun{stop: stop, ended: make(chan struct{}), registry: registry}
	go func(run *agentRun) {
		defer close(run.ended)
		run.err = agent.Run(running, options)
	}(s.agent)
	t.Cleanup(func() { s.agent.end(t) })
}

// sum is that of all series of a counter.
func (r *agentRun) sum(t *testing.T, counter string) (sum int) {
	t.Helper()
	families, err := r.registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != counter {
			continue
		}
		for _, series := range family.GetMetric() {
			sum += int(series.GetCounter().GetValue())
		}
	}
	return sum
}

// end stops the agent, if it still runs, and waits for it.
func (r *agentRun) end(t *testing.T) {
	t.Helper()
	r.stop()
	<-r.ended
	require.NoError(t, r.err)
}
