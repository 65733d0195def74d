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
	"github.com/lateen-project/lateen/test/world"
)

// How many random plays there are, and the seed of the first; `make sweep` has more of them.
var (
	plays     = flag.Int("plays", 3, "random plays")
	firstSeed = flag.Uint64("seed", 0, "seed of the first play; 0: the clock")
)

func TestRandomFaultsLeaveEveryTransferEndedAndClean(t *testing.T) {
	seed := *firstSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	for i := range *plays {
		t.Run(fmt.Sprintf("seed %d", seed+uint64(i)), func(t *testing.T) { play(t, seed+uint64(i)) })
	}
}

// play runs some transfers while agents are killed at random writes and movers and resources meet
// random ends. Whatever happens, the promises hold.
func play(t *testing.T, seed uint64) {
	t.Helper()
	const transfers, slots = 4, 2
	random := rand.New(rand.NewPCG(seed, seed))
	s := newSite(t, time.Duration(random.IntN(300))*time.Millisecond)
	s.configure(fmt.Sprintf(`{"loadConcurrency":{"globalConfig":%d}}`, slots))
	history, err := s.Record(t.Context())
	require.NoError(t, err)
	enough := func(options *agent.Options) { options.Limits.Retries = 20 }
	k := newKiller(1+random.IntN(30), random.IntN(2) == 0)
	first := s.start(through(k.wrap), enough)
	names := make([]string, transfers)
	for i := range names {
		names[i] = s.transfer()
	}
	for range 1 + random.IntN(4) {
		meddle(s, random, names)
	}
	first.cancel() // as SIGTERM, if it was not killed before
	<-first.ended
	s.start(enough)
	for _, name := range names {
		settle(s, name)
		requireOneEnd(t, history, name)
	}
	require.LessOrEqual(t, history.MostAtOnce(s.node.Name(), "InProgress", "Canceling"), slots)
}

// meddle does one thing that can happen to a transfer; that it may come too late is a part of it.
func meddle(s *site, random *rand.Rand, names []string) {
	s.Helper()
	name := names[random.IntN(len(names))]
	act := []func() error{
		func() error { return s.Transfers(world.PodVolumeBackup).Cancel(s.soon(), name) },
		func() error { return s.Transfers(world.PodVolumeBackup).Delete(s.soon(), name) },
		func() error { return s.node.Vanish(s.soon(), s.Namespace, name) },
		func() error { _ = s.node.Evict(s.Namespace, name, "pressure"); return nil },
	}[random.IntN(4)]
	if err := act(); err != nil && !apierrors.IsNotFound(err) {
		require.NoError(s, err)
	}
}

// settle waits for a transfer to be over and clean, or to be gone if somebody has deleted it.
func settle(s *site, name string) {
	s.Helper()
	backup, err := s.Transfers(world.PodVolumeBackup).Get(s.soon(), name)
	if apierrors.IsNotFound(err) {
		require.NoError(s, s.WaitPodGone(s.soon(), s.Namespace, name))
		return
	}
	require.NoError(s, err)
	if backup.DeletionTimestamp != nil {
		require.NoError(s, s.Transfers(world.PodVolumeBackup).WaitGone(s.soon(), name))
	} else {
		_, err := s.Transfers(world.PodVolumeBackup).Wait(s.soon(), name, world.Settled)
		require.NoError(s, err)
	}
	require.NoError(s, s.WaitPodGone(s.soon(), s.Namespace, name))
}

// requireOneEnd wants nothing to follow a terminal phase but the deletion.
func requireOneEnd(t *testing.T, history *world.Recorder, name string) {
	t.Helper()
	phases := history.Phases(name)
	for i, phase := range phases {
		if phase.Ended() {
			for _, later := range phases[i+1:] {
				require.Equal(t, world.Gone, later, "%v", phases)
			}
		}
	}
}
