package agent

import (
	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// observe registers the metrics that are computed at each scrape.
func (a *assembly) observe(slots *capacity.Slots, kinds []kind) {
	a.Metrics.Slots(slots.Limit, slots.InUse)
	a.Metrics.Queue(a.startup.Config.PrepareQueueLength)
	a.Metrics.Transfers(func() []metrics.Count {
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
