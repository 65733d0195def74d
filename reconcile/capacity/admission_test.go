package capacity

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const testTimeout = time.Minute

// recordedAdmission is an Admission that records its enqueue calls.
type recordedAdmission struct {
	*Admission
	recorder
}

func newRecordedAdmission(limit, perNode int) *recordedAdmission {
	return &recordedAdmission{Admission: NewAdmission(limit, perNode, testTimeout, clock.RealClock{})}
}

// newEntry returns a waiting transfer. A UID that begins with r is a restore.
func newEntry(uid types.UID, age int, node string) Entry {
	return Entry{UID: uid, Key: "kind/velero/" + string(uid), Version: "1", Created: created(age), Restore: uid[0] == 'r', Node: node, Phase: Waiting}
}

// observeAll observes waiting transfers without a node, oldest first.
func (r *recordedAdmission) observeAll(uids ...types.UID) {
	for age, uid := range uids {
		r.Observe(newEntry(uid, age, ""))
	}
}

func (r *recordedAdmission) tryAdmit(uid types.UID) bool {
	return r.TryAdmit(uid, r.enqueue(uid))
}

// takeEnqueued returns the transfers enqueued since its last call.
func (r *recordedAdmission) takeEnqueued() []types.UID {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	enqueued := r.enqueued
	r.enqueued = nil
	return enqueued
}

// admissibleUIDs returns the admissible transfers and the number of known ones.
func (r *recordedAdmission) admissibleUIDs() (admissible []types.UID, known int) {
	r.lock.Lock()
	defer r.lock.Unlock()
	return uidsOf(r.admissible), len(r.known)
}

// numbered returns the UIDs of that many backups.
func numbered(count int) []types.UID {
	var uids []types.UID
	for i := range count {
		uids = append(uids, types.UID(fmt.Sprintf("b%04d", i)))
	}
	return uids
}

// letPass advances the time in a bubble and runs everything that is due before its end.
func letPass(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}

func TestATimerThatFiresEarlyIsSetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(1, 0)
		q.observeAll("lost", "b1")
		require.False(t, q.tryAdmit("b1"))
		q.timer.Stop()
		q.skipExpired()
		require.Empty(t, q.takeEnqueued())
		letPass(testTimeout)
		require.Equal(t, []types.UID{"b1"}, q.takeEnqueued())
	})
}

func TestALaggingCacheReleasesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(1, 0)
		q.observeAll("a", "b")
		require.True(t, q.tryAdmit("a"))
		require.False(t, q.tryAdmit("b"))
		written := newEntry("a", 0, "")
		written.Version, written.Phase = "10", Admitted
		q.Observe(written)
		elsewhere := written
		elsewhere.Created = written.Created.UTC()
		require.True(t, same(written, elsewhere), "the same time in another zone")
		stale := newEntry("a", 0, "")
		stale.Version = "9"
		q.Observe(stale)
		require.Empty(t, q.takeEnqueued())
		written.Version, written.Phase = "11", Uncounted
		q.Observe(written)
		require.Equal(t, []types.UID{"b"}, q.takeEnqueued())
	})
}

func TestARecreatedResourceReplacesTheOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(1, 1)
		old := newEntry("old", 0, "n1")
		old.Phase = Admitted
		q.Observe(old)
		recreated := newEntry("new", 1, "n1")
		recreated.Key = old.Key
		require.False(t, q.tryAdmit("new"), "it is requested before it is observed")
		q.Observe(recreated)
		require.Equal(t, []types.UID{"new"}, q.takeEnqueued())
		require.True(t, q.tryAdmit("new"))
		q.Forget("old")
		q.Forget("new")
		require.Empty(t, q.known)
		require.Empty(t, q.uids)
		require.Empty(t, q.nodes, "nothing is kept of deleted transfers")
		require.True(t, q.cluster.empty())
	})
}

func TestWithoutALimitEveryTransferIsAdmitted(t *testing.T) {
	q := newRecordedAdmission(0, 1)
	for _, uid := range numbered(100) {
		q.Observe(newEntry(uid, 0, "n1"))
		require.True(t, q.tryAdmit(uid))
	}
	require.True(t, q.tryAdmit("unknown"))
	require.Empty(t, q.known, "nothing is kept")
}
