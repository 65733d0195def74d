package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/reconcile/seeds"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// How many random plays there are; `make sweep` has more of them.
var plays = flag.Int("plays", 3, "random plays")

func TestRandomFaultsLeaveEveryTransferEndedAndClean(t *testing.T) { seeds.Each(t, *plays, play) }

// play runs some transfers while agents are killed at random writes and movers and resources meet
// random ends. Whatever happens, the promises hold, and a transfer that nobody has canceled or deleted completes.
func play(t *testing.T, random *rand.Rand) {
	t.Helper()
	const transfers, slots = 4, 2
	s := newEnv(t, time.Duration(random.IntN(300))*time.Millisecond)
	s.configure(fmt.Sprintf(`{"loadConcurrency":{"globalConfig":%d}}`, slots))
	history := s.record()
	enough := func(options *agent.Options) { options.Limits.Retries = 20 }
	k := newKiller(1+random.IntN(30), random.IntN(2) == 0)
	first := s.start(fixture.Through(k.wrap), enough)
	names, intents := make([]string, transfers), map[string]intent{}
	for i := range names {
		names[i] = s.transfer()
	}
	for range 1 + random.IntN(4) {
		meddle(s, random, names, intents)
	}
	first.Cancel() // as SIGTERM, if it was not killed before
	<-first.Ended()
	s.start(enough)
	for _, name := range names {
		require.Contains(t, intents[name].ends(), settle(s, name), "what was asked for: %+v", intents[name])
		requireOneEnd(t, history, name)
	}
	require.LessOrEqual(t, history.MostAtOnce(s.node.Name(), "InProgress", "Canceling"), slots)
}

// intent is what somebody has asked for about a transfer. What happens to its mover is no reason to end otherwise.
type intent struct{ cancel, deletion bool }

// ends are the phases that a transfer may end in. A deletion, too, may come when it has ended already.
func (i intent) ends() []testenv.Phase {
	switch {
	case i.deletion:
		return []testenv.Phase{testenv.Gone}
	case i.cancel:
		return []testenv.Phase{testenv.Canceled, testenv.Completed}
	default:
		return []testenv.Phase{testenv.Completed}
	}
}

// meddle does one thing that can happen to a transfer; that it may come too late is a part of it.
func meddle(s *env, random *rand.Rand, names []string, all map[string]intent) {
	name := names[random.IntN(len(names))]
	about := all[name]
	var err error
	switch random.IntN(4) {
	case 0:
		about.cancel = true
		err = s.Transfers(testenv.PodVolumeBackup).Cancel(s.soon(), name)
	case 1:
		about.deletion = true
		err = s.Transfers(testenv.PodVolumeBackup).Delete(s.soon(), name)
	case 2:
		err = s.node.Vanish(s.soon(), s.Namespace, name)
	default:
		_ = s.node.Evict(s.Namespace, name, "pressure") // or there is no mover
	}
	all[name] = about
	if err != nil && !apierrors.IsNotFound(err) {
		require.NoError(s, err)
	}
}

// settle waits for a transfer to be over and clean, and returns its phase, which is Gone if somebody has deleted it.
func settle(s *env, name string) testenv.Phase {
	phase := testenv.Gone
	backup, err := s.Transfers(testenv.PodVolumeBackup).Get(s.soon(), name)
	switch {
	case apierrors.IsNotFound(err):
	case err == nil && backup.DeletionTimestamp != nil:
		require.NoError(s, s.Transfers(testenv.PodVolumeBackup).WaitGone(s.soon(), name))
	default:
		require.NoError(s, err)
		backup, err = s.Transfers(testenv.PodVolumeBackup).Wait(s.soon(), name, testenv.Settled)
		require.NoError(s, err)
		phase = backup.Status.Phase
	}
	require.NoError(s, s.WaitPodGone(s.soon(), s.Namespace, name))
	return phase
}

// requireOneEnd wants nothing to follow a terminal phase but the deletion.
func requireOneEnd(t *testing.T, history *testenv.Recorder, name string) {
	t.Helper()
	phases := history.Phases(name)
	for i, phase := range phases {
		if phase.Ended() {
			for _, later := range phases[i+1:] {
				require.Equal(t, testenv.Gone, later, "%v", phases)
			}
		}
	}
}
