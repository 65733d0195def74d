package capacity

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
)

// recordedPreparation is a Preparation that records its enqueue calls.
type recordedPreparation struct {
	*Preparation
	recorder
	now *testingclock.FakePassiveClock
}

func newPreparation(slots int) *recordedPreparation {
	now := testingclock.NewFakePassiveClock(created(0))
	return &recordedPreparation{Preparation: NewPreparation(slots, now), now: now}
}

const home = "busy"

func (r *recordedPreparation) tryAcquire(home string, uid types.UID, age int) bool {
	return r.TryAcquire(Transfer{UID: uid, Home: home, Created: created(age)}, r.enqueue(uid))
}

// given acquires places for many transfers, and returns for how many there is one.
func (r *recordedPreparation) given(home string) (count int) {
	for age, uid := range numbered(200) {
		if r.tryAcquire(home, uid, age) {
			count++
		}
	}
	return count
}

func (r *recordedPreparation) track(uid types.UID, stage Stage, home string) {
	r.Track(Transfer{UID: uid, Home: home, Created: created(0)}, stage, "busy", r.enqueue(uid))
}

// run has a transfer start for one time and work for another.
func (r *recordedPreparation) run(uid types.UID, home string, start, work time.Duration) {
	r.track(uid, Starting, home)
	r.now.SetTime(r.now.Now().Add(start))
	r.track(uid, Ready, home)
	r.track(uid, Working, home)
	r.now.SetTime(r.now.Now().Add(work))
	r.track(uid, Ended, home)
}

func TestTransfersWithoutANodeHavePlacesOfTheirOwn(t *testing.T) {
	p := &recordedPreparation{Preparation: FixedPreparation(1)}
	require.True(t, p.tryAcquire(home, "backup", 1))
	require.True(t, p.tryAcquire("", "upload", 2))
	require.False(t, p.tryAcquire(home, "another backup", 3))
	require.False(t, p.tryAcquire("", "another upload", 4))
	p.Release("upload")
	require.Equal(t, []types.UID{"another upload"}, p.enqueued)
}

func TestARestoreIsBeforeOlderBackups(t *testing.T) {
	for _, home := range []string{"", home} {
		p := &recordedPreparation{Preparation: FixedPreparation(1)}
		require.True(t, p.tryAcquire(home, "first", 1))
		require.False(t, p.tryAcquire(home, "backup", 2))
		require.False(t, p.TryAcquire(Transfer{UID: "restore", Home: home, Created: created(3), Restore: true}, p.enqueue("restore")))
		p.Release("first")
		require.Equal(t, []types.UID{"restore"}, p.enqueued)
	}
}

func TestBeforeAnythingIsKnownTwoRoundsOfMoversWait(t *testing.T) {
	for slots, want := range map[int]int{1: 1 + 4, 4: 4 + 10, 16: 16 + 34} {
		require.Equal(t, want, newPreparation(slots).given(home))
	}
}

// The movers that wait read the API server, so a node with long transfers has few of them.
func TestTwiceAsManyMoversWaitAsSlotsBecomeFreeWhileOneStarts(t *testing.T) {
	for _, test := range []struct {
		slots       int
		start, work time.Duration
		wait        int
	}{
		{1, time.Second, time.Hour, 0},
		{1, time.Second, 50 * time.Second, 1},
		{1, time.Second, 5 * time.Second, 1},
		{1, time.Second, time.Second, 2},
		{1, time.Minute, time.Second, 4},
		{4, time.Second, 30 * time.Second, 1},
		{4, 5 * time.Second, 30 * time.Second, 2},
		{4, time.Second, time.Second, 8},
		{4, time.Minute, time.Second, 10},
	} {
		t.Run(fmt.Sprintf("%d slots, %s to start, %s to work", test.slots, test.start, test.work), func(t *testing.T) {
			p := newPreparation(test.slots)
			p.SetNodes(30)
			p.run("node", home, test.start, test.work)
			p.run("fleet", "", test.start, test.work)
			require.Equal(t, test.slots+test.wait, p.given(home))
			require.Equal(t, 30*(test.slots+test.wait), p.fleet.Limit())
		})
	}
}

func TestThePaceFollowsTheLastTransfers(t *testing.T) {
	p := newPreparation(1)
	p.run("short", home, time.Second, time.Second)
	p.run("while the clock was set back", home, 0, 0)
	require.Equal(t, pace{time.Second, time.Second}, p.nodePace)
	require.Equal(t, 1+2, p.homes.On(home).Limit())
	for i := range 10 {
		p.run(types.UID(fmt.Sprint("long", i)), home, time.Second, time.Minute)
	}
	require.Equal(t, 1+0, p.homes.On(home).Limit())
	p.given(home)
	p.track("at work before", Working, home)
	p.track("at work before", Ended, home)
	p.enqueued = nil
	for i := range 20 {
		p.run(types.UID(fmt.Sprint("slow", i)), home, time.Minute, time.Minute)
	}
	require.Equal(t, 1+2, p.homes.On(home).Limit())
	require.Contains(t, p.enqueued, types.UID("b0002"), "there is a place for it now")
	require.Empty(t, p.tracked)
}

func TestOnlyWhatWasSeenWholeIsMeasured(t *testing.T) {
	for name, test := range map[string]struct {
		stages []Stage
		want   pace
	}{
		"working at the start of the agent": {[]Stage{Working, Working, Ended}, pace{}},
		"ready at the start of the agent":   {[]Stage{Ready, Working, Ended}, pace{work: time.Hour}},
		"late at the start of the agent":    {[]Stage{Late, Ready}, pace{}},
		"failed before it worked":           {[]Stage{Starting, Ready, Ended}, pace{start: time.Hour}},
		"its mover was lost":                {[]Stage{Starting, Working, Ready, Working, Late, Ended}, pace{}},
		"deleted":                           {[]Stage{Starting, Ended}, pace{}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPreparation(1)
			for _, stage := range test.stages {
				p.track("one", stage, home)
				p.now.SetTime(p.now.Now().Add(time.Hour))
			}
			require.Equal(t, test.want, p.nodePace)
			p.Release("one")
			require.Empty(t, p.tracked)
		})
	}
}

func TestALateMoverHoldsNoPlaceAndItsStartIsMeasured(t *testing.T) {
	p := newPreparation(1)
	p.track("one", Starting, home)
	p.now.SetTime(p.now.Now().Add(time.Minute))
	p.track("one", Late, home)
	require.Zero(t, p.homes.On(home).InUse())
	p.now.SetTime(p.now.Now().Add(time.Minute))
	p.track("one", Ready, home)
	require.Equal(t, 1, p.homes.On(home).InUse())
	require.Equal(t, 2*time.Minute, p.nodePace.start)
}

func TestPlacesWithoutANodeGrowWithTheCluster(t *testing.T) {
	p := newPreparation(4)
	require.Equal(t, 14, p.given(""), "of this node")
	p.SetNodes(0)
	require.Equal(t, 14, p.fleet.Limit(), "no agent is known yet")
	p.SetNodes(10)
	require.Len(t, p.enqueued, 126, "those that have a place now")
	require.Equal(t, 140, p.given(""))
	p.SetNodes(3)
	p.enqueued = nil
	p.Release("b0000")
	require.Empty(t, p.enqueued, "98 places are taken too many")
}

func TestABusyNodeHoldsNoPlacesOfOtherNodes(t *testing.T) {
	p := newPreparation(4) // on a node, 4 work and 10 wait
	p.SetNodes(2)
	waiting := numbered(30)
	track := func(uids []types.UID, stage Stage) {
		for _, uid := range uids {
			p.track(uid, stage, "")
		}
	}
	track(waiting, Starting)
	track(waiting, Ready)
	require.Equal(t, 14, p.fleet.InUse())
	require.True(t, p.tryAcquire("", "for another node", 40))
	p.Release("for another node")
	track(waiting[:4], Working)
	require.Equal(t, 14, p.fleet.InUse())
	track(waiting[29:], Working)
	require.Equal(t, 15, p.fleet.InUse(), "its mover works")
	p.enqueued = nil
	track(waiting[:4], Ended)
	require.Subset(t, p.enqueued, waiting[14:17], "they are counted now")
	track(waiting[4:], Ready)
	require.Equal(t, 14, p.fleet.InUse())
	track(waiting[4:], Starting) // their movers were lost, and the next ones may run elsewhere
	require.Equal(t, 26, p.fleet.InUse())
	track(waiting, Ended)
	require.Zero(t, p.fleet.InUse()+p.share.On("busy").InUse())
}

func TestNoMoreMoversWaitThanTheNodesHavePlaces(t *testing.T) {
	p := newPreparation(4)
	p.SetNodes(2)
	for i, uid := range numbered(100) {
		if !p.tryAcquire("", uid, i) {
			require.Equal(t, 2*14, i)
			return
		}
		node := fmt.Sprint("n", i%2)
		for stage := Starting; stage <= Working && (stage != Working || i < 8); stage++ {
			if stage != Late {
				p.Track(Transfer{UID: uid, Created: created(i)}, stage, node, func() {})
			}
		}
	}
	require.Fail(t, "each transfer found a place")
}

func TestPrepareQueueLengthReplacesThePace(t *testing.T) {
	p := &recordedPreparation{Preparation: NewQueue(100, 30)}
	p.SetNodes(1)
	require.Equal(t, 30, p.given(home))
	require.Equal(t, 100, p.given(""), "30 of them have one already")
	p.Track(Transfer{UID: "accepted by Velero", Veleros: true}, Starting, "", nil)
	for _, stage := range []Stage{Late, Ready} {
		p.track("b0000", stage, home)
		p.Release("b0001")
		require.False(t, p.tryAcquire(home, "b0001", 1), "b0000 and the one of Velero hold their places")
	}
	p.track("b0000", Working, home)
	require.True(t, p.tryAcquire(home, "b0001", 1))
}

func TestPlacesFollowChangedSlots(t *testing.T) {
	p := newPreparation(1)
	require.Equal(t, 5, p.given(home))
	p.SetNodes(30)
	p.SetSlots(2)
	require.Len(t, p.enqueued, 3)
	require.Equal(t, 30*8, p.fleet.Limit())
	fixed := &recordedPreparation{Preparation: FixedPreparation(3)}
	fixed.SetSlots(9)
	require.Equal(t, 3, fixed.given(home))
}

func TestEachNodeHasPlacesOfItsOwn(t *testing.T) {
	p := newPreparation(4)
	p.SetSlotsOf("small", 1)
	require.Equal(t, 1+4, p.given("small"))
	require.Equal(t, 4+10, p.given(home))
	require.Equal(t, []bool{true, false}, []bool{p.KnowsSlotsOf("small"), p.KnowsSlotsOf(home)})
	p.Release("b0000")
	require.True(t, p.tryAcquire(home, "b0014", 14), "the one that was next")
	p.SetSlotsOf(home, 2)
	p.ForgetSlots("small")
	require.Equal(t, 4+10, p.homes.On(home).Limit())
	require.Equal(t, []bool{true, false}, []bool{p.KnowsSlotsOf("small"), p.KnowsSlotsOf(home)})
	p.SetSlots(2)
	require.False(t, p.KnowsSlotsOf("small"), "the rules may have changed")
	require.True(t, FixedPreparation(1).KnowsSlotsOf(home), "nothing depends on them")
	queue := &recordedPreparation{Preparation: NewQueue(100, 4)}
	require.False(t, queue.KnowsSlotsOf("small"))
	queue.SetSlotsOf("small", 1)
	require.Equal(t, []int{1, 4}, []int{queue.given("small"), queue.given(home)})
}

// Fewer movers wait for long transfers, and slots are idle no longer than with as many as short transfers need.
func TestTheSlotsAreAsBusyWithFewerMovers(t *testing.T) {
	for _, slots := range []int{1, 4, 16} {
		for _, work := range []time.Duration{500 * time.Millisecond, time.Second, 5 * time.Second, 30 * time.Second, 5 * time.Minute} {
			t.Run(fmt.Sprintf("%d slots, %s", slots, work), func(t *testing.T) {
				most := &recordedPreparation{Preparation: FixedPreparation(slots + 2*slots + 2), now: testingclock.NewFakePassiveClock(created(0))}
				fastest, longest := play(most, slots, time.Second, work)
				took, waits := play(newPreparation(slots), slots, time.Second, work)
				t.Logf("%s, at best %s; a mover waits %s, at most %s", took, fastest, waits, longest)
				require.LessOrEqual(t, took.Seconds(), 1.03*fastest.Seconds())
				require.LessOrEqual(t, waits, longest)
				if work >= 30*time.Second {
					require.Less(t, waits, longest*2/5)
				}
			})
		}
	}
}

// play has transfers start and work on a node, between half and one and a half times as long as given. It returns how long
// that takes, and how long a mover waits on average.
func play(p *recordedPreparation, slots int, start, work time.Duration) (makespan, waits time.Duration) {
	const transfers = 400
	type mover struct {
		uid   types.UID
		stage Stage
		since time.Time
		until time.Time // of no meaning in stage Ready
	}
	starts, works := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(3, 4)) //nolint:gosec // repeatable
	begun, waiting, working := p.now.Now(), numbered(transfers), 0
	var movers []*mover
	enter := func(m *mover, stage Stage, takes time.Duration, random *rand.Rand) {
		m.stage, m.since = stage, p.now.Now()
		m.until = m.since.Add(takes/2 + time.Duration(random.Int64N(int64(takes)+1)))
		p.track(m.uid, stage, home)
	}
	for {
		for len(waiting) > 0 && p.tryAcquire(home, waiting[0], 0) {
			movers = append(movers, &mover{uid: waiting[0]})
			enter(movers[len(movers)-1], Starting, start, starts)
			waiting = waiting[1:]
		}
		var due *mover
		for _, m := range movers {
			if m.stage == Ready && working < slots {
				waits += p.now.Now().Sub(m.since) / transfers
				enter(m, Working, work, works)
				working++
			}
			if m.stage != Ready && (due == nil || m.until.Before(due.until)) {
				due = m
			}
		}
		if due == nil {
			return p.now.Now().Sub(begun), waits
		}
		p.now.SetTime(due.until)
		if due.stage == Starting {
			enter(due, Ready, 0, starts)
			continue
		}
		enter(due, Ended, 0, starts)
		movers = slices.DeleteFunc(movers, func(m *mover) bool { return m == due })
		working--
	}
}
