package agent

import (
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// observe registers the metrics that are computed at each scrape.
func (p *assembly) observe(slots *capacity.Slots, kinds []kind) {
	p.Metrics.Slots(slots.Limit, slots.InUse)
	p.Metrics.Queue(p.startup.Config.PrepareQueueLength)
	p.Metrics.Transfers(func() []metrics.Count {
		var all []metrics.Count
		for _, k := range kinds {
			all = append(all, k.count()...)
		}
		return all
	})
}

// countFromZero initializes every series with 0 before the first event.
func countFromZero(meter *metrics.Metrics) {
	meter.Init(metrics.InitialLabels{
		Consumers:     priority.Consumers(),
		ClassReasons:  format(priority.Reasons()),
		Sections:      format(configmap.Sections()),
		ConfigReasons: format(configmap.Reasons()),
		Kinds:         kindNames(),
		LostReasons:   format(objects.LostReasons()),
		Ends:          terminalReasons(),
	})
}

// backupChanged updates the metrics that Velero itself has for PodVolumeBackups.
func (p *assembly) backupChanged(backup *velerov1.PodVolumeBackup, before, after transfer.State) {
	switch {
	case before.Phase.NeedsSlot() && after.Phase.IsMoving():
		p.Metrics.BackupStarted()
	case after.Phase.HasSucceeded():
		names := transfer.VeleroMetricNames(backup)
		p.Metrics.BackupCompleted(names.Operation, names.Backup, backup.Name, after.CompletedAt.Sub(after.StartedAt))
	}
}

// dataMoved updates the metrics that Velero itself has for DataUploads and DataDownloads.
func (p *assembly) dataMoved(kind string, after transfer.State) {
	if after.Phase.Terminal() {
		p.Metrics.DataMoved(kind, string(after.Phase))
	}
}

func kindNames() []string {
	var names []string
	for _, kind := range api.Kinds() {
		names = append(names, kind.Name)
	}
	return names
}

func terminalReasons() []metrics.End {
	var all []metrics.End
	for phase, reasons := range transfer.TerminalReasons() {
		for _, reason := range reasons {
			all = append(all, metrics.End{Phase: string(phase), Reason: string(reason)})
		}
	}
	return all
}

// format converts named strings to label values.
func format[T ~string](named []T) []string {
	plain := make([]string, 0, len(named))
	for _, word := range named {
		plain = append(plain, string(word))
	}
	return plain
}
