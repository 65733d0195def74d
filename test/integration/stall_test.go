package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/testenv"
)

// soonStalled ends movers that report nothing for ten seconds.
func soonStalled(options *agent.Options) { options.Limits.StallTimeout = 10 * time.Second }

func TestAMoverThatStallsIsReplaced(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.Movers.Stalls = 1
	r := s.start(soonStalled)
	name := s.transfer()
	s.says("MoverRestarted", "mover stalled")
	ended := s.ends(name, testenv.Completed)
	require.Equal(t, "1", ended.Annotations[api.AnnotationRestarts])
	require.Equal(t, 2, s.moversMade(name))
	require.Equal(t, 1, r.metric("lateen_mover_restarts_total", "reason", "stalled"))
	require.Zero(t, r.metric("lateen_slots_in_use"))
}

func TestAMoverThatStallsAgainFailsItsTransferAndFreesItsSlot(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.configure(`{"loadConcurrency":{"globalConfig":1}}`)
	s.Movers.Stalls = 2
	r := s.start(soonStalled)
	name := s.transfer()
	ended := s.ends(name, testenv.Failed)
	require.Contains(t, ended.Status.Message, "mover stalled: no byte moved and no Event sent within 10s; given up after 1 restarts")
	require.Equal(t, 2, s.moversMade(name))
	r.finished("Failed", "mover_stalled")
	s.ends(s.transfer(), testenv.Completed)
}
