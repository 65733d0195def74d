package config_test

import (
	_ "embed"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// fullConfig uses every field of the schema.
//
//go:embed testdata/full.json
var fullConfig string

func parse(text string, nodeLabels map[string]string) (config.Config, []config.Problem) {
	return config.Parse(map[string]string{"node-agent-config.json": text}, nodeLabels)
}

func TestParseOfEverything(t *testing.T) {
	got, problems := parse(fullConfig, map[string]string{"size": "big", "zone": "b"})
	require.Empty(t, problems)
	require.Equal(t, config.Config{
		Limits: config.Limits{
			Concurrency: 5, GlobalConcurrency: 2, MaxConcurrency: 8, PrepareQueueLength: 10, Cluster: 20, StorageClasses: map[string]int{"gold": 4},
		},
		NodeRules: []config.NodeRule{
			{Nodes: metav1.LabelSelector{MatchLabels: map[string]string{"size": "big"}}, Number: 8},
			{Nodes: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "zone", Operator: metav1.LabelSelectorOpIn, Values: []string{"a", "b"}},
			}}, Number: 5},
		},
		PriorityClassName: "velero-low",
		Movers: objects.Settings{
			LoadAffinity: []objects.LoadAffinity{
				{StorageClass: "gold", Nodes: metav1.LabelSelector{MatchLabels: map[string]string{"disk": "fast"}}},
				{Nodes: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: "gpu", Operator: metav1.LabelSelectorOpDoesNotExist},
				}}},
			},
			BackupClaims: map[string]objects.BackupClaim{
				"gold":   {StorageClass: "silver", ReadOnly: true, SPCNoRelabeling: true, Annotations: map[string]string{"example.com/Fast": "yes"}},
				"bronze": {ReadWriteOncePod: true, Copies: objects.Copies{SecretNames: []string{"key", "ca"}, ConfigMapNames: []string{"kms"}}},
			},
			IgnoreDelayBinding: true,
			RestoreCopies:      objects.Copies{SecretNames: []string{"key"}, ConfigMapNames: []string{"kms"}},
			SnapshotMetadata:   objects.SnapshotMetadata{SAName: "cbt"},
			Tolerations: []corev1.Toleration{
				{Key: "dedicated", Value: "backup", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(60))},
				{Operator: corev1.TolerationOpExists},
			},
			Cache: &objects.Cache{StorageClass: "local", Threshold: 1 << 30, Limit: 5000 << 20},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("128Mi")},
				Limits:   corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"), "ephemeral-storage": resource.MustParse("10Gi")},
			},
			Privileged:  true,
			Labels:      map[string]string{"team": "storage"},
			Annotations: map[string]string{"example.com/owner": "storage team"},
		},
	}, got)
}

func TestParseLimitsTheNumberOfProblems(t *testing.T) {
	text := `{"podLabels": {` + strings.Repeat(`"a b": 1, `, 1000) + `"c": "d"}, "priorityClassName": 1}`
	got, problems := parse(text, nil)
	require.Len(t, problems, 11)
	require.Contains(t, problems[9].Message, "only the first 10")
	require.Equal(t, config.SectionPriorityClassName, problems[10].Section, "other sections are reported too")
	want := config.Defaults()
	want.Movers.Labels = map[string]string{"c": "d"}
	require.Equal(t, want, got)
}

func TestParseKeepsTheReasonOfAnUnusedValue(t *testing.T) {
	got, problems := parse(`{"podResources": {`+strings.Repeat(`"x": 1, `, 20)+`"cpuRequest": "1", "cpuLimit": "lots"}}`, nil)
	require.Len(t, problems, 11)
	require.Equal(t, config.InvalidValue, problems[10].Reason)
	require.Equal(t, corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}, got.Movers.Resources)
}

func TestParseReadsFieldsInOtherCapitalsAsVeleroDoes(t *testing.T) {
	want, problems := parse(`{"loadConcurrency": {"globalConfig": 3}, "podResources": {"cpuLimit": "1"}, "podLabels": {"a": "b"}}`, nil)
	require.Empty(t, problems)
	got, problems := parse(`{"LoadConcurrency": {"globalconfig": 3}, "podresources": {"CPULimit": "1"}, "PODLABELS": {"a": "b"}}`, nil)
	require.Empty(t, problems)
	require.Equal(t, want, got)
}

func parsed(t *testing.T, text string) config.Config {
	t.Helper()
	config, problems := config.Parse(map[string]string{"any": text}, map[string]string{"disk": "ssd"})
	require.Empty(t, problems)
	return config
}

func TestAnEditOfAnyFieldIsAppliedOrNeedsARestart(t *testing.T) {
	for text, want := range map[string]config.Edit{
		`{"priorityClassName": "high"}`:                                       {Applied: []string{"priorityClassName"}},
		`{"loadConcurrency": {"globalConfig": 3}}`:                            {Applied: []string{"loadConcurrency"}},
		`{"loadConcurrency": {"perNodeConfig": [{"number": 3}]}}`:             {Applied: []string{"loadConcurrency"}},
		`{"loadAffinity": [{"nodeSelector": {"matchLabels": {"a":"b"}}}]}`:    {Applied: []string{"loadAffinity"}},
		`{"podResources": {"memoryLimit": "1Gi"}}`:                            {Applied: []string{"podResources"}},
		`{"podLabels": {"a": "1"}}`:                                           {Applied: []string{"podLabels"}},
		`{"podAnnotations": {"a": "1"}}`:                                      {Applied: []string{"podAnnotations"}},
		`{"podAnnotations": {"a": "` + strings.Repeat("1", 256<<10-1) + `"}}`: {Applied: []string{"podAnnotations"}}, // the limit of an object
		`{"tolerations": [{"key": "a", "operator": "Exists"}]}`:               {Applied: []string{"tolerations"}},
		`{"csiSnapshotMetadataServiceConfigs": {"saName": "a"}}`:              {Applied: []string{"csiSnapshotMetadataServiceConfigs"}},
		`{"privilegedFsBackup": true}`:                                        {Applied: []string{"privilegedFsBackup"}},
		`{"loadConcurrency": {"cluster": 3}}`:                                 {Applied: []string{"loadConcurrency"}},
		`{"loadConcurrency": {"storageClasses": {"fast": 3}}}`:                {Applied: []string{"loadConcurrency"}},
		`{"loadConcurrency": {"prepareQueueLength": 3}}`:                      {Pending: []string{"loadConcurrency.prepareQueueLength"}},
		`{"backupPVC": {"fast": {"readOnly": true}}}`:                         {Pending: []string{"backupPVC"}},
		`{"restorePVC": {"ignoreDelayBinding": true}}`:                        {Pending: []string{"restorePVC"}},
		`{"restorePVC": {"secretNames": ["a"]}}`:                              {Pending: []string{"restorePVC"}},
		`{"cachePVC": {"storageClass": "fast"}}`:                              {Pending: []string{"cachePVC"}},
		`{}`:                                                                  {},
	} {
		t.Run(text, func(t *testing.T) {
			got := config.Apply(parsed(t, `{}`), parsed(t, text))
			require.Equal(t, want.Applied, got.Applied)
			require.Equal(t, want.Pending, got.Pending)
			if len(want.Pending) > 0 {
				text = `{}` // the field in force stays in force
			}
			require.Equal(t, parsed(t, text), got.Config)
		})
	}
}

// checkProblems returns the sections with a value that cannot be used.
func checkProblems(t *testing.T, problems []config.Problem) map[config.Section]bool {
	t.Helper()
	broken := map[config.Section]bool{}
	for _, problem := range problems {
		require.Contains(t, config.Sections(), problem.Section)
		if first, _, _ := strings.Cut(problem.Path, "."); slices.Contains(config.Sections(), config.Section(first)) {
			require.Equal(t, config.Section(first), problem.Section)
		}
		require.Contains(t, config.Reasons(), problem.Reason)
		require.NotEmpty(t, problem.Message)
		require.Less(t, len(problem.String()), 1000)
		require.NotContains(t, problem.String(), "\n")
		if problem.Reason != config.UnknownField && problem.Reason != config.Ignored {
			broken[problem.Section] = true
		}
	}
	return broken
}

// checkWithout requires that a value with an invalidating Problem has the same effect as no value. Nothing else gets lost with it.
func checkWithout(t *testing.T, text string, got config.Config, problems []config.Problem, nodeLabels map[string]string) {
	t.Helper()
	var document any
	require.NoError(t, json.Unmarshal([]byte(text), &document))
	for _, problem := range problems {
		if problem.Reason.Invalidates() {
			document = without(document, problem.Path)
		}
	}
	rest, err := json.Marshal(compact(document))
	require.NoError(t, err)
	want, _ := parse(string(rest), nodeLabels)
	require.Equal(t, want, got, "%s means another than %s", text, rest)
}

// dropped marks an element of a list until all invalid elements are removed.
type dropped struct{}

// without returns a document without the value at a path, or without the whole list element that contains it.
func without(at any, path string) any {
	switch at := at.(type) {
	case map[string]any:
		for name, value := range at {
			rest, below := strings.CutPrefix(path, name)
			switch {
			case !below:
			case rest == "":
				delete(at, name)
			case rest[0] == '.' || rest[0] == '[':
				at[name] = without(value, strings.TrimPrefix(rest, "."))
			}
		}
	case []any:
		index, _, _ := strings.Cut(strings.TrimPrefix(path, "["), "]")
		if i, err := strconv.Atoi(index); err == nil && i < len(at) {
			at[i] = dropped{}
		}
	}
	return at
}

func compact(at any) any {
	switch at := at.(type) {
	case map[string]any:
		for name, value := range at {
			at[name] = compact(value)
		}
	case []any:
		return slices.DeleteFunc(at, func(value any) bool { return value == any(dropped{}) })
	}
	return at
}

// The corpus has the Problem of each.
func TestFieldsWithoutEffectAreOmittedAndTheRestIsInForce(t *testing.T) {
	got, problems := parse(`{
		"podLabels": {"velero.io/data-upload": "x", "team": "storage", "lateen.dev/mover": "false"},
		"podAnnotations": {"lateen.dev/attempt": "7", "a": "b"},
		"backupPVC": {"gold": {"spcNoRelabeling": true, "storageClass": "silver"}, "bronze": 7}, "cachePVC": {"storageClass": "local"},
		"loadAffinity": [{"nodeSelector": {"matchLabels": {"disk": "fast"}, "matchFields": []}}], "backePVC": {}}`, nil)
	require.Len(t, problems, 7)
	require.Contains(t, problems[6].Message, "did you mean backupPVC?", "the first of two names that are equally close")
	require.Equal(t, objects.Settings{
		LoadAffinity: []objects.LoadAffinity{{Nodes: metav1.LabelSelector{MatchLabels: map[string]string{"disk": "fast"}}}},
		Cache:        &objects.Cache{StorageClass: "local", Limit: 5000 << 20},
		Labels:       map[string]string{"team": "storage"}, Annotations: map[string]string{"a": "b"},
		BackupClaims: map[string]objects.BackupClaim{"gold": {StorageClass: "silver", SPCNoRelabeling: true}},
	}, got.Movers)
}

func TestParseConcurrencyOfANode(t *testing.T) {
	const rules = `{"loadConcurrency": {"globalConfig": 3, "perNodeConfig": [
	  {"nodeSelector": {"matchLabels": {"zone": "a"}}, "number": 6},
	  {"nodeSelector": {"matchLabels": {"size": "big"}}, "number": 9},
	  {"nodeSelector": {"matchLabels": {"size": "small"}}, "number": 2}]}}`
	for name, test := range map[string]struct {
		labels map[string]string
		want   int
	}{
		"no rule matches, the global number counts": {nil, 3},
		"one rule matches":                          {map[string]string{"size": "big"}, 9},
		"the smaller of two that match counts":      {map[string]string{"size": "big", "zone": "a"}, 6},
		"a rule may be under the global number":     {map[string]string{"size": "small"}, 2},
	} {
		got, problems := parse(rules, test.labels)
		require.Empty(t, problems, name)
		require.Equal(t, config.Limits{Concurrency: test.want, GlobalConcurrency: 3, MaxConcurrency: 9}, got.Limits, name)
	}
}

const repositoryKey = "app-default-kopia"

func TestMaintenanceOfARepositoryComesBeforeThatOfAll(t *testing.T) {
	got, problems := config.ParseMaintenance(map[string]string{
		"global": `{"priorityClassName":"low","podLabels":{"a":"b"},"podAnnotations":{"c":"d"},"keepLatestMaintenanceJobs":5,
			"tolerations":[{"key":"dedicated","operator":"Exists"}],"podResources":{"memoryLimit":"1Gi"},"loadAffinity":[{"nodeSelector":{"matchLabels":{"x":"y"}}}]}`,
		repositoryKey:          `{"podResources":{"cpuRequest":"100m"},"keepLatestMaintenanceJobs":0,"loadAffinity":[]}`,
		"other-default-kopia":  `not read`,
		"other-default-restic": `not read`,
	}, repositoryKey)
	require.Empty(t, problems)
	require.Equal(t, "low", got.PriorityClassName)
	require.Equal(t, map[string]string{"a": "b"}, got.Jobs.Labels)
	require.Equal(t, map[string]string{"c": "d"}, got.Jobs.Annotations)
	require.Zero(t, got.Jobs.Keep)
	require.Len(t, got.Jobs.LoadAffinity, 1)
	require.Equal(t, []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}, got.Jobs.Tolerations)
	require.Equal(t, corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}, got.Jobs.Resources,
		"a section is used as a whole")
	for _, invalid := range []string{
		`{"podResources":{"memoryLimit":"4Gb"},"tolerations":"none","cachePVC":7}`,
		`{"podResources":{"memoryLimit":"4Gb","cpuLimit":"1"},"tolerations":[7],"cachePVC":{"storageClass":"slow","size":"lots"}}`,
	} {
		got, problems = config.ParseMaintenance(map[string]string{
			"global":      `{"tolerations":[{"operator":"Exists"},7],"podResources":{"memoryLimit":"1Gi"},"cachePVC":{"storageClass":"fast","size":"1Gi"}}`,
			repositoryKey: invalid,
		}, repositoryKey)
		require.Len(t, problems, 4)
		require.Equal(t, "global.tolerations[1]", problems[0].Path, "in the order of the keys")
		require.Equal(t, &objects.JobCache{StorageClass: "fast", Size: resource.MustParse("1Gi")}, got.Jobs.Cache)
		require.Equal(t, corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}, got.Jobs.Resources.Limits, invalid)
		require.Equal(t, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, got.Jobs.Tolerations)
	}
}

// TestFieldsUnsetInGlobalAreTakenFromTheRepository follows Velero's code and its e2e case RepoMaintenance. Velero's
// documentation says that these three are read from global only.
func TestFieldsUnsetInGlobalAreTakenFromTheRepository(t *testing.T) {
	own := `{"priorityClassName":"own","podLabels":{"own":"a"},"podAnnotations":{"own":"b"}}`
	for name, global := range map[string]string{"no global": "", "a global without it": `{"keepLatestMaintenanceJobs":1}`, "a global with empty values": `{"priorityClassName":"","podLabels":{},"podAnnotations":{}}`} {
		t.Run(name, func(t *testing.T) {
			data := map[string]string{repositoryKey: own}
			if global != "" {
				data["global"] = global
			}
			got, problems := config.ParseMaintenance(data, repositoryKey)
			require.Empty(t, problems)
			require.Equal(t, "own", got.PriorityClassName)
			require.Equal(t, map[string]string{"own": "a"}, got.Jobs.Labels)
			require.Equal(t, map[string]string{"own": "b"}, got.Jobs.Annotations)
		})
	}
	got, problems := config.ParseMaintenance(map[string]string{
		"global": `{"priorityClassName":"all","podLabels":{"all":"a"},"podAnnotations":{"all":"b"}}`, repositoryKey: own,
	}, repositoryKey)
	require.Len(t, problems, 3)
	for _, problem := range problems {
		require.Equal(t, config.Ignored, problem.Reason)
		require.Contains(t, problem.Message, "because key global sets it")
	}
	require.Equal(t, config.Maintenance{PriorityClassName: "all", Jobs: objects.JobSettings{
		Keep: 3, Labels: map[string]string{"all": "a"}, Annotations: map[string]string{"all": "b"},
	}}, got)
	got, _ = config.ParseMaintenance(map[string]string{"global": `{"priorityClassName":7}`, repositoryKey: own}, repositoryKey)
	require.Equal(t, priority.ConfigInvalid, got.Unreadable, "which class global means cannot be known")
}

func TestParseInvalidMaintenance(t *testing.T) {
	for name, test := range map[string]struct {
		data       map[string]string
		reason     config.Reason
		unreadable priority.Reason
	}{
		"nothing at all":                              {nil, config.Empty, priority.ConfigEmpty},
		"no JSON for all":                             {map[string]string{"global": "x: y"}, config.InvalidJSON, priority.ConfigInvalid},
		"no JSON for this repository":                 {map[string]string{repositoryKey: "{"}, config.InvalidJSON, ""},
		"a class that is no name":                     {map[string]string{"global": `{"priorityClassName":"Not A Name"}`}, config.InvalidValue, priority.ConfigInvalid},
		"a file with a key that is none":              {map[string]string{"config.json": `{"global":{"priorityClassName":"low"},"all":{}}`}, config.InvalidValue, priority.ConfigInvalid},
		"a file beside another":                       {map[string]string{"a": `{"global":{}}`, repositoryKey: `{}`}, config.InvalidValue, priority.ConfigInvalid},
		"a file of fields":                            {map[string]string{"config.json": `{"priorityClassName":"low"}`}, config.InvalidValue, priority.ConfigInvalid},
		"a key beside global":                         {map[string]string{"global": `{}`, "notes": "by hand"}, config.Ignored, ""},
		"global in global":                            {map[string]string{"global": `{"global":{"keepLatestMaintenanceJobs":1}}`}, config.UnknownField, ""},
		"a class that is no name, for one repository": {map[string]string{repositoryKey: `{"priorityClassName":"Not A Name"}`}, config.InvalidValue, priority.ConfigInvalid},
		"labels that are none, for one repository":    {map[string]string{repositoryKey: `{"podLabels":{"a":1}}`}, config.WrongType, ""},
		"a number below zero":                         {map[string]string{"global": `{"keepLatestMaintenanceJobs":-1}`}, config.InvalidValue, ""},
		"a cache without a size":                      {map[string]string{"global": `{"cachePVC":{"storageClass":"fast"}}`}, config.Missing, ""},
		"a cache without a class":                     {map[string]string{"global": `{"cachePVC":{"size":"1Gi"}}`}, config.Missing, ""},
		"a file without keys":                         {map[string]string{"config.json": `{}`}, config.InvalidValue, priority.ConfigInvalid},
		"an unknown field":                            {map[string]string{"global": `{"keepLatest":1}`}, config.UnknownField, ""},
		"resources that are none":                     {map[string]string{"global": `{"podResources":{"cpuLimit":"lots"}}`}, config.InvalidValue, ""},
	} {
		got, problems := config.ParseMaintenance(test.data, repositoryKey)
		require.Len(t, problems, 1, name)
		require.Equal(t, test.reason, problems[0].Reason, name)
		require.Equal(t, config.SectionMaintenance, problems[0].Section, name)
		want := config.Maintenance{Jobs: objects.JobSettings{Keep: 3}, Unreadable: test.unreadable}
		require.Equal(t, want, got, name)
	}
}

func TestALoneFileIsReadByTheKeysInIt(t *testing.T) {
	got, problems := config.ParseMaintenance(map[string]string{
		"config.json": `{"global": {"priorityClassName": "low", "keepLatest": 1}, "` + repositoryKey + `": {"keepLatestMaintenanceJobs": 1}}`,
	}, repositoryKey)
	require.Equal(t, "low", got.PriorityClassName)
	require.Equal(t, 1, got.Jobs.Keep)
	require.Len(t, problems, 2)
	require.Equal(t, config.UnknownField, problems[0].Reason)
	require.Zero(t, problems[0].Line+problems[0].Column, "the line of the file is not known")
	require.Equal(t, config.Risky, problems[1].Reason)
	require.False(t, config.Risky.Invalidates())
	require.Contains(t, problems[1].String(), "config.json: Velero's server does not read it")
	require.Contains(t, problems[1].Message, "--from-file=global=FILE")
}

func TestParseRepository(t *testing.T) {
	for name, test := range map[string]struct {
		text  string
		limit int64 // in MiB
	}{
		"an empty object":                  {`{}`, 5000},
		"a number":                         {`{"cacheLimitMB": 2048}`, 2048},
		"a number in quotes":               {`{"cacheLimitMB": "2048"}`, 2048},
		"null is left out":                 {`{"cacheLimitMB": null}`, 5000},
		"fields of the server are skipped": {`{"cacheLimitMB": 1, "fullMaintenanceInterval": "fastGC"}`, 1},
	} {
		limit, problems := config.ParseRepository(map[string]string{"kopia": test.text, "other": "{"})
		require.Empty(t, problems, name)
		require.Equal(t, test.limit*1024*1024, limit, name)
	}
}
