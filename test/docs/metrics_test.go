package docs

import (
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// everyMetric is what an agent registers, by name, with its labels.
func everyMetric(t *testing.T) map[string][]string {
	t.Helper()
	registry := prometheus.NewRegistry()
	all := metrics.New(registry, "v1", "node-1")
	all.Slots(func() int { return 1 }, func() int { return 0 })
	all.Queue(0)
	all.ConfigHash(7)
	all.Transfers(func() []metrics.Count { return nil })
	all.Coordination("pods")
	all.Maintenance()
	descriptions := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(descriptions)
		close(descriptions)
	}()
	form := regexp.MustCompile(`fqName: "([^"]+)".* variableLabels: \{([^}]*)\}`)
	found := map[string][]string{}
	for each := range descriptions {
		parts := form.FindStringSubmatch(each.String())
		require.NotNil(t, parts, each.String())
		found[parts[1]] = strings.FieldsFunc(parts[2], func(r rune) bool { return r == ',' })
	}
	return found
}

// What is registered by a method that the test does not know of is found by its name in the source.
func TestEveryMetricIsLookedAt(t *testing.T) {
	known := everyMetric(t)
	for _, name := range first(`"((?:lateen|velero|podVolume|rest_client|workqueue)_[a-z_]*[a-z])"`, sources(t)["metrics"]) {
		require.Contains(t, known, name, "everyMetric does not register it")
	}
}

func TestEveryMetricIsDescribed(t *testing.T) {
	known := everyMetric(t)
	described := map[string]bool{}
	for _, row := range rows(page(t, "metrics").section(t, "Metrics")) {
		if len(row) == 2 {
			continue // the values of labels
		}
		require.NotEmpty(t, row[2], "docs/metrics.md: what %s says", row[0])
		for _, name := range codes(row[0]) {
			described[name] = true
			if prefix, is := strings.CutSuffix(name, "*"); is {
				require.Contains(t, []string{"go_", "process_"}, prefix, "only what client_golang collects by itself is described by a prefix")
				for each := range known {
					if strings.HasPrefix(each, prefix) {
						delete(known, each)
					}
				}
				continue
			}
			labels, exists := known[name]
			require.True(t, exists, "docs/metrics.md describes the metric %s, which no agent has", name)
			require.ElementsMatch(t, labels, codes(row[1]), "docs/metrics.md: the labels of %s", name)
		}
	}
	for name, labels := range known {
		require.True(t, described[name], "docs/metrics.md does not describe the metric %s %v below \"Metrics\"", name, labels)
	}
}

// Who sees a reason in a label finds it.
func TestEveryReasonInALabelIsNamed(t *testing.T) {
	known := map[string][]string{}
	for _, reason := range objects.LostReasons() {
		known["lateen_mover_restarts_total"] = append(known["lateen_mover_restarts_total"], string(reason))
	}
	for _, reason := range priority.Reasons() {
		known["lateen_priority_class_fallbacks_total"] = append(known["lateen_priority_class_fallbacks_total"], string(reason))
	}
	for _, reasons := range transfer.TerminalReasons() {
		for _, reason := range reasons {
			known["lateen_transfers_finished_total"] = append(known["lateen_transfers_finished_total"], string(reason))
		}
	}
	described := map[string][]string{}
	for _, row := range rows(page(t, "metrics").section(t, "Metrics")) {
		if len(row) == 2 {
			described[strings.Trim(row[0], "`")] = sorted(codes(row[1]))
		}
	}
	for name := range known {
		known[name] = sorted(known[name])
	}
	require.Equal(t, known, described)
}

// A metric that is named anywhere is one.
func TestMetricsThatAreNamedExist(t *testing.T) {
	known := everyMetric(t)
	name := regexp.MustCompile(`\b(lateen|podVolume|rest_client|workqueue)_[a-z_]*[a-z]\b`)
	for _, d := range documents(t) {
		for _, each := range d.prose {
			for _, code := range codes(each.text) {
				if strings.HasSuffix(code, "*") {
					continue
				}
				for _, found := range name.FindAllString(code, -1) {
					found = regexp.MustCompile(`_(bucket|sum)$`).ReplaceAllString(found, "")
					require.Contains(t, known, found, "%s:%d names a metric that no agent has", d.name, each.number)
				}
			}
		}
	}
}
