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
)

// referenceModel is the simplest Admission: it sorts and counts everything after each change.
type referenceModel struct {
	limit, perNode int
	now            time.Time
	all            map[types.UID]*referenceEntry
	enqueued       []types.UID
}

type referenceEntry struct {
	Entry
	admissible         bool // admissible at the last count
	since, reserved    time.Time
	skipped, requested bool
	refused            bool // and waits to be enqueued
}

func (r *referenceModel) observe(e Entry) {
	for uid, known := range r.all {
		if uid != e.UID && known.Key == e.Key {
			delete(r.all, uid)
		}
	}
	known := r.all[e.UID]
	if known == nil {
		known = &referenceEntry{}
		r.all[e.UID] = known
	}
	if known.Entry != e {
		known.Entry, known.skipped = e, false
	}
	if e.Phase != Waiting {
		*known = referenceEntry{Entry: e}
	}
	r.count()
}

func (r *referenceModel) forget(uid types.UID) {
	delete(r.all, uid)
	r.count()
}

func (r *referenceModel) tryAdmit(uid types.UID) bool {
	known := r.all[uid]
	if known.Phase != Waiting || !known.reserved.IsZero() {
		return true
	}
	known.requested, known.refused = true, false
	r.decide()
	if known.admissible {
		known.reserved = r.now
	} else {
		known.refused = true
	}
	r.count()
	return !known.refused
}

func (r *referenceModel) release(uid types.UID) {
	if known := r.all[uid]; known.Phase == Waiting {
		known.reserved, known.requested, known.refused = time.Time{}, false, false
		if !known.since.IsZero() && r.now.Sub(known.since) >= testTimeout {
			known.skipped = true
		}
		if r.decide(); !known.admissible {
			known.since = time.Time{}
		}
		r.count()
	}
}

// pass advances the time from one expired timeout to the next.
func (r *referenceModel) pass(d time.Duration) {
	until := r.now.Add(d)
	for {
		r.now = until
		for _, known := range r.all {
			if ends := known.ends(); !ends.IsZero() && ends.Before(r.now) {
				r.now = ends
			}
		}
		finished := false
		for _, known := range r.all {
			if ends := known.ends(); !ends.IsZero() && !ends.After(r.now) {
				*known = referenceEntry{Entry: known.Entry, skipped: true}
				finished = true
			}
		}
		r.count()
		if !finished && r.now.Equal(until) {
			return
		}
	}
}

func (r *referenceEntry) ends() time.Time {
	switch {
	case !r.reserved.IsZero():
		return r.reserved.Add(testTimeout)
	case r.admissible:
		return r.since.Add(testTimeout)
	}
	return time.Time{}
}

// count determines the admissible transfers and enqueues the refused ones.
func (r *referenceModel) count() {
	r.decide()
	for uid, known := range r.all {
		switch {
		case known.admissible && known.since.IsZero():
			known.since = r.now
		case !known.admissible && known.reserved.IsZero():
			known.since = time.Time{}
		}
		if known.admissible && known.refused {
			known.refused = false
			r.enqueued = append(r.enqueued, uid)
		}
	}
}

func (r *referenceModel) decide() {
	var queued []*referenceEntry
	taken, takenAt, restoresAt := 0, map[string]int{}, map[string]bool{}
	for _, known := range r.all {
		known.admissible = false
		if known.Phase == Admitted || !known.reserved.IsZero() {
			taken++
			takenAt[known.Node]++
		} else if known.Phase == Waiting && (!known.skipped || known.requested) {
			queued = append(queued, known)
			restoresAt[known.Node] = restoresAt[known.Node] || known.Restore
		}
	}
	slices.SortFunc(queued, func(a, b *referenceEntry) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
	})
	queued = slices.DeleteFunc(queued, func(known *referenceEntry) bool {
		if known.Node == "" || r.perNode == 0 {
			return false
		}
		if takenAt[known.Node] >= share(r.perNode, known.Restore, restoresAt[known.Node]) {
			return true
		}
		takenAt[known.Node]++
		return false
	})
	restores := slices.ContainsFunc(queued, func(known *referenceEntry) bool { return known.Restore })
	for _, known := range queued {
		if taken < share(r.limit, known.Restore, restores) {
			taken++
			known.admissible = true
		}
	}
}

func share(limit int, restore, restores bool) int {
	switch {
	case restore || !restores:
		return limit
	case limit < 4:
		return limit - 1
	default:
		return limit - limit/4
	}
}

// FuzzAdmission plays random steps, and compares Admission with its model after each.
func FuzzAdmission(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, seed))
			limit, perNode := 1+random.IntN(9), random.IntN(4)
			admission, model := newRecordedAdmission(limit, perNode), &referenceModel{limit: limit, perNode: perNode, now: time.Now(), all: map[types.UID]*referenceEntry{}}
			for step := range 400 {
				what := randomStep(t, random, admission, model)
				admissible, size := admission.admissibleUIDs()
				require.Len(t, model.all, size)
				for uid, known := range model.all {
					require.Equal(t, known.admissible, slices.Contains(admissible, uid), "step %d, %s: whether %s is admissible", step, what, uid)
				}
				enqueued := admission.takeEnqueued()
				slices.Sort(enqueued)
				slices.Sort(model.enqueued)
				require.Equal(t, model.enqueued, enqueued, "step %d, %s: enqueued transfers", step, what)
				model.enqueued = nil
			}
		})
	})
}

// randomStep applies the same step to both and returns its description.
func randomStep(t *testing.T, random *rand.Rand, admission *recordedAdmission, model *referenceModel) string {
	t.Helper()
	uids := slices.Sorted(maps.Keys(model.all))
	if len(uids) == 0 || random.IntN(5) == 0 {
		e := newEntry(types.UID(fmt.Sprintf("%c%06x", "bbr"[random.IntN(3)], random.IntN(1<<24))), random.IntN(20), randomNode(random))
		if len(uids) > 0 && random.IntN(10) == 0 {
			e.Key = model.all[uids[random.IntN(len(uids))]].Key
		}
		admission.Observe(e)
		model.observe(e)
		return fmt.Sprintf("new %v", e)
	}
	uid := uids[random.IntN(len(uids))]
	switch random.IntN(9) {
	case 0:
		d := time.Duration(1+random.IntN(70)) * time.Second
		letPass(d)
		model.pass(d)
		return "pass " + d.String()
	case 1:
		admission.Forget(uid)
		model.forget(uid)
		return "forget " + string(uid)
	case 2:
		admission.Release(uid)
		model.release(uid)
		return "release " + string(uid)
	case 3:
		model.perNode = random.IntN(4)
		admission.SetPerNode(model.perNode)
		model.count()
		return fmt.Sprintf("%d per node", model.perNode)
	case 4, 5:
		e := model.all[uid].Entry
		if random.IntN(3) > 0 { // otherwise the same version is listed again
			e.Version += "+"
			e.Phase, e.Node = AdmissionPhase(random.IntN(3)), randomNode(random)
		}
		admission.Observe(e)
		model.observe(e)
		return fmt.Sprintf("change %v", e)
	default:
		require.Equal(t, model.tryAdmit(uid), admission.tryAdmit(uid), "admit %s", uid)
		return "ask " + string(uid)
	}
}

func randomNode(random *rand.Rand) string { return []string{"", "n1", "n2"}[random.IntN(3)] }
