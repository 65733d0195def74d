package agent

import (
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/build"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

type backups = reconcile.Transfers[*velerov1.PodVolumeBackup]

// observe registers what is computed at each scrape.
func (p *parts) observe(slots *reconcile.Slots, transfers *backups) {
	p.Metrics.Slots(slots.Limit(), slots.InUse)
	p.Metrics.Transfers(func() []metrics.Count { return transfers.Count(p.caches.PodVolumeBackups.List()) })
}

// countFromZero makes every series exist before anything can be counted.
func countFromZero(meter *metrics.Metrics) {
	meter.Init(metrics.Start{
		Consumers:     priority.Consumers(),
		ClassReasons:  words(priority.Reasons()),
		Sections:      words(config.Sections()),
		ConfigReasons: words(config.Reasons()),
		Kinds:         []string{transfer.PodVolumeBackup().Name},
		LostReasons:   build.LostReasons(),
		Ends:          ends(),
	})
}

// backupChanged counts what Velero's own metrics count of PodVolumeBackups.
func (p *parts) backupChanged(backup *velerov1.PodVolumeBackup, before, after transfer.State) {
	switch {
	case before.Phase == transfer.Prepared && after.Phase == transfer.InProgress:
		p.Metrics.BackupStarted()
	case after.Phase == transfer.Completed:
		names := transfer.NamesOf(backup)
		p.Metrics.BackupCompleted(names.Operation, names.Backup, backup.Name, after.CompletedAt.Sub(after.StartedAt))
	}
}

func ends() []metrics.End {
	var all []metrics.End
	for phase, reasons := range transfer.Ends() {
		for _, reason := range reasons {
			all = append(all, metrics.End{Phase: string(phase), Reason: string(reason)})
		}
	}
	return all
}

// words are named strings as label values.
func words[T ~string](named []T) []string {
	plain := make([]string, 0, len(named))
	for _, word := range named {
		plain = append(plain, string(word))
	}
	return plain
}
