package metrics_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/metrics"
)

func TestGaugesFollowTheCaches(t *testing.T) {
	m, registry := newMetrics()
	inUse, waiting := 3, 2
	m.Slots(func() int { return 4 }, func() int { return inUse })
	m.Queue(7)
	m.Transfers(func() []metrics.Count {
		return []metrics.Count{
			{Kind: "podvolumebackup", Phase: "New", Transfers: waiting, OldestAge: 12.5, MaxPhaseAge: 3, Unattended: map[string]int{"node-2": waiting}},
			{Kind: "datadownload", Phase: "New", Unattended: map[string]int{"node-2": 1}},
			{Kind: "podvolumebackup", Phase: "Completed", Transfers: 100, Terminal: true},
		}
	})
	names := []string{
		"lateen_slots_in_use", "lateen_slots_limit", "lateen_prepare_queue_limit", "lateen_unattended_transfers",
		"lateen_transfers", "lateen_transfer_oldest_age_seconds", "lateen_transfer_max_phase_age_seconds",
	}
	requireSeries(t, registry, `
		lateen_slots_in_use 3
		lateen_slots_limit 4
		lateen_prepare_queue_limit 7
		lateen_unattended_transfers{node="node-1"} 0
		lateen_unattended_transfers{node="node-2"} 3
		lateen_transfers{kind="podvolumebackup",phase="New"} 2
		lateen_transfers{kind="podvolumebackup",phase="Completed"} 100
		lateen_transfers{kind="datadownload",phase="New"} 0
		lateen_transfer_oldest_age_seconds{kind="podvolumebackup",phase="New"} 12.5
		lateen_transfer_oldest_age_seconds{kind="datadownload",phase="New"} 0
		lateen_transfer_max_phase_age_seconds{kind="podvolumebackup",phase="New"} 3
		lateen_transfer_max_phase_age_seconds{kind="datadownload",phase="New"} 0
	`, names...)
	inUse, waiting = 0, 7
	require.Subset(t, series(registry, names...), []string{
		"lateen_slots_in_use 0", `lateen_unattended_transfers{node="node-2"} 8`, `lateen_transfers{kind="podvolumebackup",phase="New"} 7`,
	})
}

func TestMaxSilenceIsPerKind(t *testing.T) {
	m, registry := newMetrics()
	m.Transfers(func() []metrics.Count {
		return []metrics.Count{
			{Kind: "dataupload", Phase: "InProgress", Silence: 20}, {Kind: "dataupload", Phase: "Canceling", Silence: 90}, {Kind: "datadownload", Phase: "InProgress"},
		}
	})
	requireSeries(t, registry, `
		lateen_mover_max_silence_seconds{kind="dataupload"} 90
		lateen_mover_max_silence_seconds{kind="datadownload"} 0
	`, "lateen_mover_max_silence_seconds")
}

func TestForeignTransfersCountUntilTheyAreTerminal(t *testing.T) {
	m, registry := newMetrics()
	m.Transfers(func() []metrics.Count {
		return []metrics.Count{
			{Kind: "dataupload", Phase: "New", Foreign: 2, ForeignAge: 90},
			{Kind: "dataupload", Phase: "InProgress", Foreign: 1, ForeignAge: 900},
			{Kind: "dataupload", Phase: "Completed", Foreign: 100, ForeignAge: 9000, Terminal: true},
			{Kind: "datadownload", Phase: "New"},
		}
	})
	requireSeries(t, registry, `
		lateen_foreign_transfers{kind="dataupload"} 3
		lateen_foreign_transfers{kind="datadownload"} 0
		lateen_foreign_transfer_oldest_new_age_seconds{kind="dataupload"} 90
		lateen_foreign_transfer_oldest_new_age_seconds{kind="datadownload"} 0
	`, "lateen_foreign_transfers", "lateen_foreign_transfer_oldest_new_age_seconds")
}
