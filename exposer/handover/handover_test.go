package handover

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/objects"
)

// handed is a hand-over whose backup pair exists.
func handed(change func(*State)) State {
	h := toyPairs{
		original: toySnapshot{there: true, ready: true}, content: toyContent{there: true, handle: true, retained: true},
		backup: toySnapshot{there: true}, copied: toyContent{there: true},
	}.seen(true)
	change(&h)
	return h
}

func TestAHandOverStopsAtWhatIsNotIts(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*State)
		rung   Step
		says   string
	}{
		"a VolumeSnapshot of another resource": {
			change: func(h *State) {
				h.Backup.Snapshot.Labels, h.Backup.Content = objects.OwnerLabels("another", "n1"), nil
			},
			rung: NameConflict, says: "VolumeSnapshot velero/du exists but has another owner; delete it to unblock the transfer",
		},
		"a VolumeSnapshot that somebody made by hand": {
			change: func(h *State) {
				h.Backup.Snapshot.Labels, h.Backup.Snapshot.Spec.Source.VolumeSnapshotContentName, h.Backup.Content = nil, nil, nil
			},
			rung: NameConflict, says: "VolumeSnapshot velero/du exists but has another owner; delete it to unblock the transfer",
		},
		"a content of another resource": {
			change: func(h *State) { h.Backup.Content.Labels = objects.OwnerLabels("another", "n1") },
			rung:   NameConflict, says: "VolumeSnapshotContent du exists but has another owner; delete it to unblock the transfer",
		},
		"a content of an earlier VolumeSnapshot with the same name": {
			change: func(h *State) { h.Backup.Content.Spec.VolumeSnapshotRef.UID = "earlier-uid" },
			rung:   Fail, says: "VolumeSnapshotContent du is bound to an earlier VolumeSnapshot of the same name",
		},
	} {
		t.Run(name, func(t *testing.T) {
			rung, description := handed(test.change).Next()
			require.Equal(t, test.rung, rung)
			require.Equal(t, test.says, description)
		})
	}
	rung, _ := handed(func(*State) {}).Next()
	require.Equal(t, DeleteOriginal, rung, "and goes on where all is its")
}
