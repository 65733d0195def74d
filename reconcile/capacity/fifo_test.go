package capacity

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// waiting returns a fifo with the named transfers, oldest first. A name that begins with r is a restore; others are
// backups.
func waiting(taken int, uids ...types.UID) *fifo {
	l := &fifo{taken: taken}
	for age, uid := range slices.Backward(uids) { // the order of insertion does not matter
		l.enter(&pending{Entry: Entry{UID: uid, Created: created(age), Restore: uid[0] == 'r'}})
	}
	return l
}

func uidsOf(candidates []*pending) []types.UID {
	uids := []types.UID{}
	for _, c := range candidates {
		uids = append(uids, c.UID)
	}
	return uids
}

func TestAdmissibleTransfers(t *testing.T) {
	for sentence, is := range map[string]struct {
		queue *fifo
		limit int
		want  []types.UID
	}{
		"none is admissible beyond the limit":            {waiting(6, "b1", "r1"), 4, []types.UID{}},
		"backups leave a quarter free for a restore":     {waiting(0, "b1", "b2", "b3", "b4", "b5", "b6", "b7", "r1"), 8, []types.UID{"b1", "b2", "b3", "b4", "b5", "b6", "r1"}},
		"a quarter is at least one":                      {waiting(0, "b1", "b2", "r1"), 2, []types.UID{"b1", "r1"}},
		"a backup leaves the only place to a restore":    {waiting(0, "b1", "b2", "r1"), 1, []types.UID{"r1"}},
		"a quarter is rounded down":                      {waiting(0, "b1", "b2", "b3", "b4", "b5", "b6", "b7", "r1"), 7, []types.UID{"b1", "b2", "b3", "b4", "b5", "b6", "r1"}},
		"places in use count for the quarter":            {waiting(3, "b1", "b2", "r1", "r2"), 4, []types.UID{"r1"}},
		"backups use the last place if no restore waits": {waiting(3, "b1", "b2"), 4, []types.UID{"b1"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			require.Equal(t, is.want, uidsOf(is.queue.first(is.limit)))
		})
	}
}
