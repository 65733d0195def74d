package capacity

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/reconcile/seeds"
)

// naive is the simplest Admission: it sorts and counts everything after each change.
type naive struct {
	limit, perNode int
	now            time.Time
	all            map[types.UID]*naively
	woken          []types.UID
}

type naively struct {
	Entry
	may           bool // admissible at the last count
	since, given  time.Time
	passed, asked bool
	refused       bool // and waits to be enqueued
}

func (n *naive) note(e Entry) {
	for uid, known := range n.all {
		if uid != e.UID && known.Key == e.Key {
			delete(n.all, uid)
		}
	}
	known := n.all[e.UID]
	if known == nil {
		known = &naively{}
		n.all[e.UID] = known
	}
	if known.Entry != e {
		known.Entry, known.passed = e, false
	}
	if e.Phase != Waiting {
		*known = naively{Entry: e}
	}
	n.count()
}

func (n *naive) forget(uid types.UID) {
	delete(n.all, uid)
	n.count()
}

func (n *naive) room(uid types.UID) bool {
	known := n.all[uid]
	if known.Phase != Waiting || !known.given.IsZero() {
		return true
	}
	known.asked, known.refused = true, false
	n.decide()
	if known.may {
		known.given = n.now
	} else {
		known.refused = true
	}
	n.count()
	return !known.refused
}

func (n *naive) release(uid types.UID) {
	if known := n.all[uid]; known.Phase == Waiting {
		known.given, known.asked, known.refused = time.Time{}, false, false
		if !known.since.IsZero() && n.now.Sub(known.since) >= testPatience {
			known.passed = true
		}
		if n.decide(); !known.may {
			known.since = time.Time{}
		}
		n.count()
	}
}

// pass advances the time from one expired timeout to the next.
func (n *naive) pass(d time.Duration) {
	until := n.now.Add(d)
	for {
		n.now = until
		for _, known := range n.all {
			if ends := known.ends(); !ends.IsZero() && ends.Before(n.now) {
				n.now = ends
			}
		}
		finished := false
		for _, known := range n.all {
			if ends := known.ends(); !ends.IsZero() && !ends.After(n.now) {
				*known = naively{Entry: known.Entry, passed: true}
				finished = true
			}
		}
		n.count()
		if !finished && n.now.Equal(until) {
			return
		}
	}
}

func (k *naively) ends() time.Time {
	switch {
	case !k.given.IsZero():
		return k.given.Add(testPatience)
	case k.may:
		return k.since.Add(testPatience)
	}
	return time.Time{}
}

// count determines the admissible transfers and enqueues the refused ones.
func (n *naive) count() {
	n.decide()
	for uid, known := range n.all {
		switch {
		case known.may && known.since.IsZero():
			known.since = n.now
		case !known.may && known.given.IsZero():
			known.since = time.Time{}
		}
		if known.may && known.refused {
			known.refused = false
			n.woken = append(n.woken, uid)
		}
	}
}

func (n *naive) decide() {
	var inLine []*naively
	taken, takenAt, restoresAt := 0, map[string]int{}, map[string]bool{}
	for _, known := range n.all {
		known.may = false
		if known.Phase == Admitted || !known.given.IsZero() {
			taken++
			takenAt[known.Node]++
		} else if known.Phase == Waiting && (!known.passed || known.asked) {
			inLine = append(inLine, known)
			restoresAt[known.Node] = restoresAt[known.Node] || known.Restore
		}
	}
	slices.SortFunc(inLine, func(a, b *naively) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
	})
	inLine = slices.DeleteFunc(inLine, func(known *naively) bool {
		if known.Node == "" || n.perNode == 0 {
			return false
		}
		if takenAt[known.Node] >= share(n.perNode, known.Restore, restoresAt[known.Node]) {
			return true
		}
		takenAt[known.Node]++
		return false
	})
	restores := slices.ContainsFunc(inLine, func(known *naively) bool { return known.Restore })
	for _, known := range inLine {
		if taken < share(n.limit, known.Restore, restores) {
			taken++
			known.may = true
		}
	}
}

func share(places int, restore, restores bool) int {
	switch {
	case restore || !restores:
		return places
	case places < 4:
		return places - 1
	default:
		return places - places/4
	}
}

func TestAdmissionIsAsItsModel(t *testing.T) {
	seeds.Each(t, 1, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		rooms := map[bool]int{}
		enqueues := 0
		for range 60 {
			limit, perNode := 1+random.IntN(9), random.IntN(4)
			synctest.Test(t, func(t *testing.T) {
				inLine, model := newQueue(limit, perNode), &naive{limit: limit, perNode: perNode, now: time.Now(), all: map[types.UID]*naively{}}
				for step := range 400 {
					what := randomStep(t, random, inLine, model, rooms)
					going, size := inLine.may()
					require.Len(t, model.all, size)
					for uid, known := range model.all {
						require.Equal(t, known.may, slices.Contains(going, uid), "step %d, %s: whether %s may go", step, what, uid)
					}
					woken := inLine.heard()
					slices.Sort(woken)
					slices.Sort(model.woken)
					require.Equal(t, model.woken, woken, "step %d, %s: who is woken", step, what)
					enqueues += len(woken)
					model.woken = nil
				}
			})
		}
		require.Greater(t, rooms[true], 1000)
		require.Greater(t, rooms[false], 1000)
		require.Greater(t, enqueues, 100)
	})
}

// randomStep applies the same step to both and returns its description.
func randomStep(t *testing.T, random *rand.Rand, inLine *queue, model *naive, rooms map[bool]int) string {
	t.Helper()
	uids := slices.Sorted(maps.Keys(model.all))
	if len(uids) == 0 || random.IntN(5) == 0 {
		e := newEntry(types.UID(fmt.Sprintf("%c%06x", "bbr"[random.IntN(3)], random.IntN(1<<24))), random.IntN(20), []string{"", "n1", "n2"}[random.IntN(3)])
		if len(uids) > 0 && random.IntN(10) == 0 {
			e.Key = model.all[uids[random.IntN(len(uids))]].Key
		}
		inLine.Observe(e)
		model.note(e)
		return fmt.Sprintf("new %v", e)
	}
	uid := uids[random.IntN(len(uids))]
	switch random.IntN(8) {
	case 0:
		d := time.Duration(1+random.IntN(70)) * time.Second
		letPass(d)
		model.pass(d)
		return "pass " + d.String()
	case 1:
		inLine.Forget(uid)
		model.forget(uid)
		return "forget " + string(uid)
	case 2:
		inLine.Release(uid)
		model.release(uid)
		return "release " + string(uid)
	case 3, 4:
		e := model.all[uid].Entry
		if random.IntN(3) > 0 { // otherwise the same version is listed again
			e.Version += "+"
			e.Phase = AdmissionPhase(random.IntN(3))
		}
		inLine.Observe(e)
		model.note(e)
		return fmt.Sprintf("change %v", e)
	default:
		room := inLine.ask(uid)
		rooms[room]++
		require.Equal(t, model.room(uid), room, "room for %s", uid)
		return "ask " + string(uid)
	}
}

func BenchmarkTenThousandWaiting(b *testing.B) {
	for range b.N {
		q := newQueue(50, 4)
		for i, uid := range numbered(10_000) {
			q.Observe(newEntry(uid, i/7, fmt.Sprint(i%500)))
		}
		for range 10_000 {
			going, _ := q.may()
			if !q.ask(going[0]) {
				b.Fatal("who may go was refused")
			}
			q.becomes(going[0], Admitted)
			q.becomes(going[0], Uncounted)
		}
	}
}
