package integration

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/testenv"
)

// shortWait ends the wait for what a transfer needs before it can be accepted within two seconds. It is for tests in which
// that never comes, and in which the message does not depend on when the agent observes it.
func shortWait(options *agent.Options) { options.Limits.PrepareTimeout = 2 * time.Second }

// expire backdates an accepted transfer, so that its prepare timeout has passed. The agent that runs fails it with what it
// has observed so far, which may be less than what the test has: every cache has a watch of its own.
func (s *env) expire(kind testenv.Kind, name string) {
	accepted := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	require.NoError(s, s.Transfers(kind).Patch(s.soon(), name, fmt.Sprintf(`{"status":{"acceptedTimestamp":%q}}`, accepted)))
}

// expire backdates an accepted transfer and replaces the agent. The next one lists all objects before its first step, so
// it has observed whatever the test has.
func (r *agentRun) expire(kind testenv.Kind, name string) *agentRun {
	r.env.Helper()
	r.stop()
	r.env.expire(kind, name)
	return r.env.start()
}

// pending waits until the mover pod has a status from which an agent reads these words.
func (s *env) pending(name, description string) {
	s.moverIs(name, func(pod *corev1.Pod) bool { return strings.Contains(objects.ReadPod(pod).Message, description) })
}
