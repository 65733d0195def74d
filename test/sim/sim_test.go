package sim

import (
	"flag"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/reconcile/seeds"
)

func TestMain(m *testing.M) {
	fixJitter()
	const garbage = 400 // schedules are short and hold little memory: collecting it took a third of the time
	debug.SetGCPercent(garbage)
	os.Exit(m.Run())
}

// play plays a plan and returns the trace and what was broken.
func play(t *testing.T, plan Plan) (played *trace, broken error) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		s := newSimulation(plan)
		broken, played = s.run(), s.trace
	})
	return played, broken
}

func TestABackupWithoutFaultsIsCompleted(t *testing.T) {
	plan := Plan{Seed: 1, Nodes: 1, Slots: 1, Hurry: true, Work: []Work{{Kind: Backup}}}
	played, broken := play(t, plan)
	require.NoError(t, broken, "%s", played)
}

func TestASeedReplaysToTheSameTrace(t *testing.T) {
	seeds.Each(t, 5, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		plan := Draw(random.Uint64())
		first, _ := play(t, plan)
		for range 3 {
			again, _ := play(t, plan)
			require.Equal(t, first.hash(), again.hash(), "plan %+v", plan)
		}
	})
}

var (
	runs  = flag.Int("runs", 1000, "fresh schedules")
	first = flag.Bool("first", false, "end with the first schedule that fails, and do not minimize its plan")
)

func TestSchedules(t *testing.T) {
	start := time.Now()
	var played, steps atomic.Int64
	t.Cleanup(func() {
		t.Logf("%d schedules with %d choices in %s", played.Load(), steps.Load(), time.Since(start).Round(time.Millisecond))
	})
	all := t
	seeds.Each(t, *runs, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		t.Parallel()
		if *first && all.Failed() {
			return
		}
		plan := Draw(random.Uint64())
		trace, broken := play(t, plan)
		played.Add(1)
		steps.Add(int64(len(trace.lines)))
		if *first {
			require.NoError(t, broken)
		}
		if broken == nil {
			return
		}
		least := Minimize(plan, func(less Plan) error {
			_, err := play(t, less)
			return err
		})
		trace, smallest := play(t, least)
		require.NoError(t, broken, "minimized to %+v: %v\n%s", least, smallest, trace)
	})
}
