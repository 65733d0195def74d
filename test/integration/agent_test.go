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
func (s *env) start(changes ...func(*agent.Options)) *agentRun {
	r := s.assemble(changes...)
	r.run()
	return r
}

// assemble makes an agent that does not run yet.
func (s *env) assemble(changes ...func(*agent.Options)) *agentRun {
	r := &agentRun{env: s, movers: &safeBuffer{}}
	// Movers are short, and the writes of their progress are tested.
	changes = append([]func(*agent.Options){func(options *agent.Options) { options.Limits.FirstProgress = 0 }}, changes...)
	var err error
	r.Agent, err = s.Agent(s.soon(), s.node, r.movers, changes...)
	require.NoError(s, err)
	return r
}

// run starts it. It ends with the test at the latest.
func (r *agentRun) run() {
	logger := ktesting.NewLogger(r.env.T, ktesting.NewConfig(ktesting.Verbosity(2)))
	r.Run(klog.NewContext(context.WithoutCancel(r.env.Context()), logger))
	r.env.Cleanup(func() {
		if err := r.Stop(); err != nil {
			logger.Error(err, "Agent ended")
		}
	})
}

// stop ends the agent as SIGTERM does.
func (r *agentRun) stop() {
	r.Cancel()
	r.wait()
	require.NoError(r.env, r.Err())
}

// wait returns when the agent has ended by itself.
func (r *agentRun) wait() { r.env.await(r.Ended(), "the end of the agent") }

// metric is the sum of all series with these labels, given as name, value, and so on.
func (r *agentRun) metric(name string, labels ...string) int {
	r.env.Helper()
	sum, err := r.Metric(name, labels...)
	require.NoError(r.env, err)
	return sum
}

// countsEnd waits until the agent has counted one transfer that ended like this, and no more: it counts a transfer after
// it has written the phase.
func (r *agentRun) countsEnd(labels ...string) {
	const name = "lateen_transfers_finished_total"
	r.env.Helper()
	require.Eventually(r.env, func() bool {
		sum, err := r.Metric(name, labels...)
		return err == nil && sum > 0
	}, testenv.Patience, 10*time.Millisecond, "%s %v", name, labels)
	require.Equal(r.env, 1, r.metric(name, labels...))
}

// finished waits until the agent has counted the one backup that ended like this.
func (r *agentRun) finished(phase, reason string) {
	r.env.Helper()
	r.countsEnd("kind", "podvolumebackup", "phase", phase, "reason", reason)
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
