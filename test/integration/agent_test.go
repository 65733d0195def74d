package integration

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// agentRun is an agent of an environment.
type agentRun struct {
	*fixture.Agent
	env    *env
	movers *safeBuffer // the logs of movers
}

// start runs an agent as `lateen node-agent` assembles it.
func (e *env) start(changes ...func(*agent.Options)) *agentRun {
	r := e.assemble(changes...)
	r.run()
	return r
}

// assemble makes an agent that does not run yet.
func (e *env) assemble(changes ...func(*agent.Options)) *agentRun {
	r := &agentRun{env: e, movers: &safeBuffer{}}
	// Movers are short, and the writes of their progress are tested.
	changes = append([]func(*agent.Options){func(options *agent.Options) { options.Limits.FirstProgress = 0 }}, changes...)
	var err error
	r.Agent, err = e.Agent(e.soon(), e.node, r.movers, changes...)
	require.NoError(e, err)
	return r
}

// run starts it. It ends with the test at the latest.
func (a *agentRun) run() {
	logger := ktesting.NewLogger(a.env.T, ktesting.NewConfig(ktesting.Verbosity(2)))
	a.Run(klog.NewContext(context.WithoutCancel(a.env.Context()), logger))
	a.env.Cleanup(func() {
		if err := a.Stop(); err != nil {
			logger.Error(err, "Agent ended")
		}
	})
}

// stop ends the agent as SIGTERM does.
func (a *agentRun) stop() {
	a.Cancel()
	a.wait()
	require.NoError(a.env, a.Err())
}

// wait returns when the agent has ended by itself.
func (a *agentRun) wait() { a.env.await(a.Ended(), "the end of the agent") }

// metric is the sum of all series with these labels, given as name, value, and so on.
func (a *agentRun) metric(name string, labels ...string) int {
	a.env.Helper()
	sum, err := a.Metric(name, labels...)
	require.NoError(a.env, err)
	return sum
}

// countsEnd waits until the agent has counted one transfer that ended like this, and no more: it counts a transfer after
// it has written the phase.
func (a *agentRun) countsEnd(labels ...string) {
	const name = "lateen_transfers_finished_total"
	a.env.Helper()
	require.Eventually(a.env, func() bool {
		sum, err := a.Metric(name, labels...)
		return err == nil && sum > 0
	}, testenv.Patience, 10*time.Millisecond, "%s %v", name, labels)
	require.Equal(a.env, 1, a.metric(name, labels...))
}

// finished waits until the agent has counted the one backup that ended like this.
func (a *agentRun) finished(phase, reason string) {
	a.env.Helper()
	a.countsEnd("kind", "podvolumebackup", "phase", phase, "reason", reason)
}

// safeBuffer is a buffer that several goroutines may use.
type safeBuffer struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.text.Write(p)
}

func (s *safeBuffer) String() string {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.text.String()
}
