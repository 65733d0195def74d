package docs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/transfer"
	"github.com/lateen-project/lateen/test/fixture"
)

// flagOf is a flag as the program explains it.
type flagOf struct{ name, fallback, usage string }

// lateen is what the program prints.
func lateen(t *testing.T, args ...string) string {
	t.Helper()
	out, err := fixture.Command(fixture.Soon(t), t, "lateen", args...).Output()
	require.NoError(t, err)
	return string(out)
}

// flagsOf are the flags of a command but for --help.
func flagsOf(t *testing.T, command string) []flagOf {
	t.Helper()
	line := regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z0-9-]+)(?:[ \[]\S+)? {2,}(.*?)(?: \(default ("[^"]*"|[^ :)]+)\))?$`)
	var all []flagOf
	for _, found := range line.FindAllStringSubmatch(lateen(t, command, "--help"), -1) {
		if found[1] != "help" {
			all = append(all, flagOf{found[1], strings.Trim(found[3], `"`), found[2]})
		}
	}
	require.NotEmpty(t, all)
	return all
}

// What a flag of the agent is for is told in words of our own; that it is there, and its default, is the program's.
func TestEveryFlagOfTheAgentIsDescribed(t *testing.T) {
	section := page(t, "command-line").section(t, "Flags")
	described, defaults := map[string]bool{}, map[string]string{}
	for _, each := range section {
		for _, code := range codes(each.text) {
			if name, is := strings.CutPrefix(code, "--"); is {
				described[name] = true
			}
		}
	}
	for _, row := range rows(section) {
		if names := codes(row[0]); len(row) == 3 {
			for i, fallback := range strings.Split(row[1], ", ") {
				if i < len(names) {
					defaults[strings.TrimPrefix(names[i], "--")] = strings.Trim(fallback, "`")
				}
			}
		}
	}
	for _, each := range flagsOf(t, "node-agent") {
		require.True(t, described[each.name], "docs/command-line.md does not describe --%s below \"Flags\": %s", each.name, each.usage)
		delete(described, each.name)
		reported, tabled := defaults[each.name]
		if length, err := time.ParseDuration(each.fallback); tabled && err == nil {
			stated, err := time.ParseDuration(reported)
			require.NoError(t, err, "docs/command-line.md: the default of --%s", each.name)
			require.Equal(t, length, stated, "docs/command-line.md: the default of --%s", each.name)
		} else if tabled && each.fallback != "" {
			require.Equal(t, each.fallback, reported, "docs/command-line.md: the default of --%s", each.name)
		}
	}
	require.Empty(t, described, "docs/command-line.md describes flags that lateen node-agent does not have")
}

// fieldsRead are the names of all fields that the parser knows, at any depth and of any ConfigMap, by the function that
// reads them: the keys of its literal of type fields.
func fieldsRead(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	field := regexp.MustCompile(`(?m)(?:^\t+|fields\{)(?:"(\w+)"|string\(Section(\w+)\)): `)
	for function := range strings.SplitSeq(sources(t)["cmd/lateen/config"], "\nfunc ") {
		if !strings.Contains(function, "fields{") {
			continue
		}
		name := first(`^(?:\([^)]*\) )?(\w+)`, function)[0]
		for _, found := range field.FindAllStringSubmatch(function, -1) {
			all[name] = append(all[name], found[1]+sectionOf(found[2]))
		}
	}
	require.NotEmpty(t, all)
	return all
}

// sectionOf is the section with a constant of that name.
func sectionOf(constant string) string {
	for _, section := range config.Sections() {
		if strings.EqualFold(string(section), constant) {
			return string(section)
		}
	}
	return ""
}

// schema is how one ConfigMap is read.
type schema struct {
	function string                                // that reads its first level
	parse    func(example string) []config.Problem // says what is wrong with a configuration
}

// schemas are those of all ConfigMaps, by the section of docs/configuration.md.
func schemas() map[string]schema {
	return map[string]schema{
		"The ConfigMap of --node-agent-configmap": {"sections", func(example string) []config.Problem {
			_, problems := config.Parse(map[string]string{"config": example}, nil)
			return problems
		}},
		"The ConfigMap of --backup-repository-configmap": {"ParseRepository", func(example string) []config.Problem {
			_, problems := config.ParseRepository(map[string]string{"kopia": example})
			return problems
		}},
		"The ConfigMap of --repo-maintenance-job-configmap": {"maintenance", func(example string) []config.Problem {
			_, problems := config.ParseMaintenance(map[string]string{"global": example}, "")
			return problems
		}},
	}
}

// Each field has a row: its name, its default, an example that the agent takes, and what it is for.
func TestEveryFieldOfAConfigMapIsDescribed(t *testing.T) {
	read := fieldsRead(t)
	var known, described []string
	for _, names := range read {
		known = append(known, names...)
	}
	index := regexp.MustCompile(`\[\]|<[^>]*>`)
	for title, schema := range schemas() {
		var sections []string
		for _, row := range rows(page(t, "configuration").section(t, title)) {
			require.Len(t, row, 4, "%s: %s", title, row[0])
			require.NotEmpty(t, row[1], "%s: the default of %s", title, row[0])
			require.NotEmpty(t, row[3], "%s: what %s is for", title, row[0])
			examples := codes(row[2])
			require.Len(t, examples, 1, "%s: the example of %s", title, row[0])
			require.Empty(t, schema.parse("{"+examples[0]+"}"), "%s: the example of %s", title, row[0])
			value, err := validator.UnmarshalJSON(strings.NewReader("{" + examples[0] + "}"))
			require.NoError(t, err)
			require.NoError(t, configSchema(t, title).Validate(value), "%s: the example of %s", title, row[0])
			for _, path := range codes(row[0]) {
				names := strings.FieldsFunc(index.ReplaceAllString(path, ""), func(r rune) bool { return r == '.' })
				require.NotEmpty(t, names, row[0])
				described = append(described, names...)
				if !strings.HasPrefix(path, ".") {
					sections = append(sections, names[0])
				}
				require.Contains(t, examples[0], strconv.Quote(names[len(names)-1]), "%s: the example of %s", title, path)
			}
		}
		require.Equal(t, sorted(read[schema.function]), sorted(sections), title)
	}
	require.Equal(t, sorted(known), sorted(described))
}

// Defaults that can be had from the parser are those that the tables say.
func TestDefaultsOfFieldsAreThose(t *testing.T) {
	defaults := map[string]string{}
	for title := range schemas() {
		for _, row := range rows(page(t, "configuration").section(t, title)) {
			for _, path := range codes(row[0]) {
				defaults[path] = row[1]
			}
		}
	}
	usual := config.Defaults()
	require.Equal(t, strconv.Itoa(usual.GlobalConcurrency), defaults["loadConcurrency.globalConfig"])
	require.Zero(t, usual.PrepareQueueLength)
	require.Equal(t, "by the slots", defaults["loadConcurrency.prepareQueueLength"])
	require.Equal(t, strconv.FormatBool(usual.Movers.Privileged), defaults["privilegedFsBackup"])
	require.Equal(t, strconv.FormatBool(usual.Movers.IgnoreDelayBinding), defaults["restorePVC.ignoreDelayBinding"])
	require.Equal(t, fmt.Sprint(config.DefaultCacheLimit>>20), defaults["cacheLimitMB"])
	require.Equal(t, strconv.Itoa(config.DefaultMaintenance().Jobs.Keep), defaults["keepLatestMaintenanceJobs"])
}

// Labels of metrics have these values, and an operator who sees one finds it.
func TestEveryReasonOfAProblemIsDescribed(t *testing.T) {
	section := page(t, "configuration").section(t, "Problems")
	var known, described []string
	for _, reason := range config.Reasons() {
		known = append(known, string(reason))
	}
	for _, row := range rows(section) {
		described = append(described, codes(row[0])...)
	}
	require.Equal(t, sorted(known), sorted(described))
}

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
