package handover

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/objects"
)

// handoverState returns a hand-over whose backup pair exists, with a change.
func handoverState(change func(*State)) State {
	h := simulatedPairs{
		original: simulatedSnapshot{exists: true, ready: true}, content: simulatedContent{exists: true, handle: true, retained: true},
		backup: simulatedSnapshot{exists: true}, backupContent: simulatedContent{exists: true},
	}.state(true)
	change(&h)
	return h
}

func TestAHandOverStopsAtObjectsOfOtherOwners(t *testing.T) {
	for name, test := range map[string]struct {
		change      func(*State)
		step        Step
		description string
	}{
		"a VolumeSnapshot of another resource": {
			change: func(h *State) {
				h.Backup.Snapshot.Labels, h.Backup.Content = objects.OwnerLabels("another", "n1"), nil
			},
			step: NameConflict, description: "VolumeSnapshot velero/du exists but has another owner; delete it to unblock the transfer",
		},
		"a VolumeSnapshot that was created by hand": {
			change: func(h *State) {
				h.Backup.Snapshot.Labels, h.Backup.Snapshot.Spec.Source.VolumeSnapshotContentName, h.Backup.Content = nil, nil, nil
			},
			step: NameConflict, description: "VolumeSnapshot velero/du exists but has another owner; delete it to unblock the transfer",
		},
		"a content of another resource": {
			change: func(h *State) { h.Backup.Content.Labels = objects.OwnerLabels("another", "n1") },
			step:   NameConflict, description: "VolumeSnapshotContent du exists but has another owner; delete it to unblock the transfer",
		},
		"a content of an earlier VolumeSnapshot with the same name": {
			change: func(h *State) { h.Backup.Content.Spec.VolumeSnapshotRef.UID = "earlier-uid" },
			step:   Fail, description: "VolumeSnapshotContent du is bound to an earlier VolumeSnapshot of the same name",
		},
	} {
		t.Run(name, func(t *testing.T) {
			step, description := handoverState(test.change).Next()
			require.Equal(t, test.step, step)
			require.Equal(t, test.description, description)
		})
	}
	step, _ := handoverState(func(*State) {}).Next()
	require.Equal(t, DeleteOriginal, step, "it continues if it owns all objects")
}
