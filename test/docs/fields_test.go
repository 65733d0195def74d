package docs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

// fieldsRead are the names of all fields that the parser knows, at any depth and of any ConfigMap, by the function that
// reads them: the keys of its literal of type fields.
func fieldsRead(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	field := regexp.MustCompile(`(?m)(?:^\t+|fields\{)(?:"(\w+)"|string\(Section(\w+)\)): `)
	for function := range strings.SplitSeq(sources(t)["cmd/lateen/configmap"], "\nfunc ") {
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
	for _, section := range configmap.Sections() {
		if strings.EqualFold(string(section), constant) {
			return string(section)
		}
	}
	return ""
}

// schema is how one ConfigMap is read.
type schema struct {
	function string                                   // that reads its first level
	parse    func(example string) []configmap.Problem // says what is wrong with a configuration
}

// schemas are those of all ConfigMaps, by the section of docs/configuration.md.
func schemas() map[string]schema {
	return map[string]schema{
		"The ConfigMap of --node-agent-configmap": {"sections", func(example string) []configmap.Problem {
			_, problems := configmap.Parse(map[string]string{"config": example}, nil)
			return problems
		}},
		"The ConfigMap of --backup-repository-configmap": {"ParseRepository", func(example string) []configmap.Problem {
			_, problems := configmap.ParseRepository(map[string]string{"kopia": example})
			return problems
		}},
		"The ConfigMap of --repo-maintenance-job-configmap": {"maintenance", func(example string) []configmap.Problem {
			_, problems := configmap.ParseMaintenance(map[string]string{"global": example}, "")
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
	usual := configmap.Defaults()
	require.Equal(t, strconv.Itoa(usual.GlobalConcurrency), defaults["loadConcurrency.globalConfig"])
	require.Zero(t, usual.PrepareQueueLength)
	require.Equal(t, "by the slots", defaults["loadConcurrency.prepareQueueLength"])
	require.Equal(t, strconv.FormatBool(usual.Movers.Privileged), defaults["privilegedFsBackup"])
	require.Equal(t, strconv.FormatBool(usual.Movers.IgnoreDelayBinding), defaults["restorePVC.ignoreDelayBinding"])
	require.Equal(t, fmt.Sprint(configmap.DefaultCacheLimit>>20), defaults["cacheLimitMB"])
	require.Equal(t, strconv.Itoa(configmap.DefaultMaintenance().Jobs.Keep), defaults["keepLatestMaintenanceJobs"])
}

// Labels of metrics have these values, and an operator who sees one finds it.
func TestEveryReasonOfAProblemIsDescribed(t *testing.T) {
	section := page(t, "configuration").section(t, "Problems")
	var known, described []string
	for _, reason := range configmap.Reasons() {
		known = append(known, string(reason))
	}
	for _, row := range rows(section) {
		described = append(described, codes(row[0])...)
	}
	require.Equal(t, sorted(known), sorted(described))
}
