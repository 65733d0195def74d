package configmap_test

import (
	_ "embed"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/objects"
)

// fullConfig uses every field of the schema.
//
//go:embed testdata/full.json
var fullConfig string

func parse(text string, nodeLabels map[string]string) (configmap.Config, []configmap.Problem) {
	return configmap.Parse(map[string]string{"node-agent-config.json": text}, nodeLabels)
}

func TestParseOfEverything(t *testing.T) {
	got, problems := parse(fullConfig, map[string]string{"size": "big", "zone": "b"})
	require.Empty(t, problems)
	require.Equal(t, configmap.Config{
		Limits: configmap.Limits{Concurrency: 5, GlobalConcurrency: 2, MaxConcurrency: 8, PrepareQueueLength: 10},
		NodeRules: []configmap.NodeRule{
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
				"bronze": {Copies: objects.Copies{SecretNames: []string{"key", "ca"}, ConfigMapNames: []string{"kms"}}},
			},
			IgnoreDelayBinding: true,
			RestoreCopies:      objects.Copies{SecretNames: []string{"key"}, ConfigMapNames: []string{"kms"}},
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

func TestParseEmptyIsTheDefaults(t *testing.T) {
	for _, text := range []string{"{}", " { } ", `{"loadConcurrency": {}, "podResources": {}}`, `{"podLabels": null, "cachePVC": null}`} {
		got, problems := parse(text, nil)
		require.Empty(t, problems, text)
		require.Equal(t, configmap.Defaults(), got, text)
	}
	require.Equal(t, configmap.Limits{Concurrency: 1, GlobalConcurrency: 1, MaxConcurrency: 1}, configmap.Defaults().Limits)
}

func TestParseInvalidConfigMaps(t *testing.T) {
	for name, test := range map[string]struct {
		data         map[string]string
		reason       configmap.Reason
		line, column int
		message      string
	}{
		"no data":               {data: nil, reason: configmap.Empty, message: "add one key"},
		"an empty value":        {data: map[string]string{"a": ""}, reason: configmap.Empty, message: "key a is empty"},
		"a blank value":         {data: map[string]string{"a": " \n\t"}, reason: configmap.Empty, message: "key a is empty"},
		"two keys":              {data: map[string]string{"a": "{}", "b": "{}"}, reason: configmap.TooManyKeys, message: "a and b"},
		"no JSON":               {data: map[string]string{"a": "{\n  \"podLabels\": {,}\n}"}, reason: configmap.InvalidJSON, line: 2, column: 17, message: "invalid JSON"},
		"JSON that ends early":  {data: map[string]string{"a": "{\"podLabels\":\n{"}, reason: configmap.InvalidJSON, line: 2, column: 1, message: "unexpected end"},
		"JSON and more":         {data: map[string]string{"a": "{}\n{}"}, reason: configmap.InvalidJSON, line: 2, column: 1, message: "after top-level value"},
		"YAML":                  {data: map[string]string{"a": "loadConcurrency:\n  globalConfig: 2\n"}, reason: configmap.InvalidJSON, line: 1, column: 1, message: "invalid JSON"},
		"a list":                {data: map[string]string{"a": "[]"}, reason: configmap.WrongType, line: 1, column: 1, message: "got a list, want an object"},
		"null":                  {data: map[string]string{"a": "null"}, reason: configmap.WrongType, line: 1, column: 1, message: "got null, want an object"},
		"a thousand lists":      {data: map[string]string{"a": strings.Repeat("[", 1000) + strings.Repeat("]", 1000)}, reason: configmap.InvalidJSON, message: "nested"},
		"a million open braces": {data: map[string]string{"a": strings.Repeat("[", 1<<20)}, reason: configmap.InvalidJSON, message: "invalid JSON", line: 1, column: 10001},
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := configmap.Parse(test.data, nil)
			require.Equal(t, configmap.Defaults(), got)
			require.Len(t, problems, 1)
			require.Equal(t, configmap.SectionConfigMap, problems[0].Section)
			require.Equal(t, test.reason, problems[0].Reason)
			require.Contains(t, problems[0].Message, test.message)
			require.Equal(t, []int{test.line, test.column}, []int{problems[0].Line, problems[0].Column})
		})
	}
}

func TestParseInvalidValues(t *testing.T) {
	for name, test := range map[string]struct {
		text    string
		section configmap.Section
		path    string
		reason  configmap.Reason
		message string
	}{
		"concurrency 0":              {`{"loadConcurrency": {"globalConfig": 0, "prepareQueueLength": 3}}`, configmap.SectionLoadConcurrency, "loadConcurrency.globalConfig", configmap.InvalidValue, "from 1"},
		"concurrency -1":             {`{"loadConcurrency": {"globalConfig": -1}}`, configmap.SectionLoadConcurrency, "loadConcurrency.globalConfig", configmap.InvalidValue, "-1 is not"},
		"concurrency 1.5":            {`{"loadConcurrency": {"globalConfig": 1.5}}`, configmap.SectionLoadConcurrency, "loadConcurrency.globalConfig", configmap.InvalidValue, "1.5 is not an integer"},
		"concurrency in quotes":      {`{"loadConcurrency": {"globalConfig": "4"}}`, configmap.SectionLoadConcurrency, "loadConcurrency.globalConfig", configmap.WrongType, "unquoted"},
		"concurrency out of range":   {`{"loadConcurrency": {"globalConfig": 99999999999999999999}}`, configmap.SectionLoadConcurrency, "loadConcurrency.globalConfig", configmap.InvalidValue, "2147483647"},
		"a queue of -1":              {`{"loadConcurrency": {"globalConfig": 4, "prepareQueueLength": -1}}`, configmap.SectionLoadConcurrency, "loadConcurrency.prepareQueueLength", configmap.InvalidValue, "from 0"},
		"a rule without number":      {`{"loadConcurrency": {"globalConfig": 4, "perNodeConfig": [{"number": 3}, {"nodeSelector": {}}]}}`, configmap.SectionLoadConcurrency, "loadConcurrency.perNodeConfig[1]", configmap.Missing, "number is missing"},
		"a rule of number 0":         {`{"loadConcurrency": {"perNodeConfig": [{"number": 0}]}}`, configmap.SectionLoadConcurrency, "loadConcurrency.perNodeConfig[0].number", configmap.InvalidValue, "from 1"},
		"an operator of no selector": {`{"loadConcurrency": {"perNodeConfig": [{"number": 2, "nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}]}}`, configmap.SectionLoadConcurrency, "loadConcurrency.perNodeConfig[0].nodeSelector", configmap.InvalidValue, "Gt"},
		"rules that are no list":     {`{"loadConcurrency": {"perNodeConfig": {"number": 2}}}`, configmap.SectionLoadConcurrency, "loadConcurrency.perNodeConfig", configmap.WrongType, "got an object, want a list"},
		"affinity that is no list":   {`{"loadAffinity": {"nodeSelector": {}}}`, configmap.SectionLoadAffinity, "loadAffinity", configmap.WrongType, "a list"},
		"affinity without nodes":     {`{"loadAffinity": [{}, {"storageClass": "gold"}]}`, configmap.SectionLoadAffinity, "loadAffinity[0]", configmap.Missing, "nodeSelector"},
		"affinity In without values": {`{"loadAffinity": [{"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]}`, configmap.SectionLoadAffinity, "loadAffinity[0].nodeSelector", configmap.InvalidValue, "values"},
		"affinity of a bad label":    {`{"loadAffinity": [{"nodeSelector": {"matchLabels": {"a b": "c"}}}]}`, configmap.SectionLoadAffinity, "loadAffinity[0].nodeSelector", configmap.InvalidValue, "is invalid"},
		"affinity of a bad class":    {`{"loadAffinity": [{"storageClass": "Gold", "nodeSelector": {"matchLabels": {"a": "c"}}}]}`, configmap.SectionLoadAffinity, "loadAffinity[0].storageClass", configmap.InvalidValue, "Gold"},
		"backup of a bad class":      {`{"backupPVC": {"gold": {"readOnly": true}, "Bad Class": {}}}`, configmap.SectionBackupPVC, "backupPVC.Bad Class", configmap.InvalidValue, "Bad Class"},
		"backup that is a string":    {`{"backupPVC": {"gold": {"readOnly": "true"}}}`, configmap.SectionBackupPVC, "backupPVC.gold.readOnly", configmap.WrongType, "true or false"},
		"backup of a bad annotation": {`{"backupPVC": {"gold": {"annotations": {"a b": "c"}}}}`, configmap.SectionBackupPVC, "backupPVC.gold.annotations.a b", configmap.InvalidValue, "a b"},
		"the same class twice":       {`{"backupPVC": {"gold": {}, "gold": {"readOnly": true}}}`, configmap.SectionBackupPVC, "backupPVC.gold", configmap.DuplicateField, "2 times"},
		"a Secret without name":      {`{"backupPVC": {"gold": {"secretNames": ["key", ""]}}}`, configmap.SectionBackupPVC, "backupPVC.gold.secretNames[1]", configmap.InvalidValue, `"" is not a valid object name`},
		"a Secret in upper case":     {`{"restorePVC": {"secretNames": ["Key", "key"]}}`, configmap.SectionRestorePVC, "restorePVC.secretNames[0]", configmap.InvalidValue, "Key"},
		"ConfigMaps as a string":     {`{"restorePVC": {"configMapNames": "kms"}}`, configmap.SectionRestorePVC, "restorePVC.configMapNames", configmap.WrongType, "want a list"},
		"an operator of no taint":    {`{"tolerations": [{"key": "a", "operator": "In"}, {"key": "b"}]}`, configmap.SectionTolerations, "tolerations[0].operator", configmap.InvalidValue, `"In"`},
		"an effect of no taint":      {`{"tolerations": [{"key": "a", "effect": "Never"}]}`, configmap.SectionTolerations, "tolerations[0].effect", configmap.InvalidValue, `"Never"`},
		"a toleration of a bad key":  {`{"tolerations": [{"key": "a b"}]}`, configmap.SectionTolerations, "tolerations[0].key", configmap.InvalidValue, "a b"},
		"a toleration of no key":     {`{"tolerations": [{"value": "a"}]}`, configmap.SectionTolerations, "tolerations[0]", configmap.InvalidValue, "without key"},
		"a toleration of any value":  {`{"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}`, configmap.SectionTolerations, "tolerations[0]", configmap.InvalidValue, "Exists takes no value"},
		"a toleration for a time":    {`{"tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 5}]}`, configmap.SectionTolerations, "tolerations[0]", configmap.InvalidValue, "NoExecute"},
		"a bad account":              {`{"csiSnapshotMetadataServiceConfigs": {"saName": "A b"}}`, configmap.SectionCSISnapshotMetadataServiceConfigs, "csiSnapshotMetadataServiceConfigs.saName", configmap.InvalidValue, "A b"},
		"restore of a number":        {`{"restorePVC": {"ignoreDelayBinding": 1}}`, configmap.SectionRestorePVC, "restorePVC.ignoreDelayBinding", configmap.WrongType, "got a number"},
		"cache without class":        {`{"cachePVC": {"residentThresholdInMB": 5}}`, configmap.SectionCachePVC, "cachePVC", configmap.Missing, "storageClass is missing"},
		"cache of a negative size":   {`{"cachePVC": {"storageClass": "a", "residentThresholdInMB": -5}}`, configmap.SectionCachePVC, "cachePVC.residentThresholdInMB", configmap.InvalidValue, "-5"},
		"resources without unit":     {`{"podResources": {"cpuRequest": "1", "memoryLimit": "lots"}}`, configmap.SectionPodResources, "podResources.memoryLimit", configmap.InvalidValue, "lots"},
		"resources without quotes":   {`{"podResources": {"cpuRequest": 1}}`, configmap.SectionPodResources, "podResources.cpuRequest", configmap.WrongType, "a quoted string"},
		"negative resources":         {`{"podResources": {"cpuRequest": "-1"}}`, configmap.SectionPodResources, "podResources.cpuRequest", configmap.InvalidValue, "-1"},
		"a request over its limit":   {`{"podResources": {"cpuRequest": "2", "cpuLimit": "1500m"}}`, configmap.SectionPodResources, "podResources.cpuRequest", configmap.InvalidValue, "request 2 exceeds limit 1500m"},
		"a class in upper case":      {`{"priorityClassName": "Velero"}`, configmap.SectionPriorityClassName, "priorityClassName", configmap.InvalidValue, "lower case"},
		"a class that is a list":     {`{"priorityClassName": ["low"]}`, configmap.SectionPriorityClassName, "priorityClassName", configmap.WrongType, "a quoted string"},
		"the class in two capitals":  {`{"priorityClassName": "a", "PriorityClassName": "b"}`, configmap.SectionPriorityClassName, "PriorityClassName", configmap.DuplicateField, ""},
		"the class twice":            {`{"priorityClassName": "a", "priorityClassName": "b"}`, configmap.SectionPriorityClassName, "priorityClassName", configmap.DuplicateField, "2 times"},
		"privileged as a string":     {`{"privilegedFsBackup": "yes"}`, configmap.SectionPrivilegedFsBackup, "privilegedFsBackup", configmap.WrongType, "got a string, want true or false"},
		"a label value too long":     {`{"podLabels": {"ok": "ok", "team": "` + strings.Repeat("x", 64) + `"}}`, configmap.SectionPodLabels, "podLabels.team", configmap.InvalidValue, "63"},
		"a label name with a blank":  {`{"podLabels": {"my team": "x"}}`, configmap.SectionPodLabels, "podLabels.my team", configmap.InvalidValue, "my team"},
		"a label that is a number":   {`{"podLabels": {"team": 1}}`, configmap.SectionPodLabels, "podLabels.team", configmap.WrongType, "a quoted string"},
		"an annotation name":         {`{"podAnnotations": {"a/b/c": "x"}}`, configmap.SectionPodAnnotations, "podAnnotations.a/b/c", configmap.InvalidValue, "a/b/c"},
		"annotations too big":        {`{"podAnnotations": {"a": "` + strings.Repeat("x", 256<<10) + `"}}`, configmap.SectionPodAnnotations, "podAnnotations", configmap.InvalidValue, "262144"},
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := parse(test.text, nil)
			require.NotEmpty(t, problems)
			checkWithout(t, test.text, got, problems, nil)
			problem := problems[len(problems)-1]
			require.Equal(t, test.section, problem.Section)
			require.Equal(t, test.path, problem.Path)
			require.Equal(t, test.reason, problem.Reason)
			require.Contains(t, problem.Message, test.message)
			require.Positive(t, problem.Line)
			require.Positive(t, problem.Column)
			require.NotContains(t, problem.String(), "\n")
		})
	}
}

func TestParseKeepsSectionsApart(t *testing.T) {
	got, problems := parse(`{
  "podResources": {"cpuRequest": "2", "cpuLimit": "1"},
  "priorityClassName": "velero-low"
}`, nil)
	require.Len(t, problems, 1)
	require.Equal(t, "velero-low", got.PriorityClassName)
	require.Equal(t, corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}}, got.Movers.Resources)
	require.Equal(t, "podResources.cpuRequest (line 2, column 34): cpu request 2 exceeds limit 1; lower the request or raise the limit", problems[0].String())
}

// Defect D32: one invalid value invalidated the rest of its section.
func TestParseKeepsValuesBesideAnInvalidOne(t *testing.T) {
	got, problems := parse(`{
  "loadConcurrency": {"globalConfig": 4, "prepareQueueLength": -1, "perNodeConfig": [
    {"number": 0}, {"nodeSelector": {"matchLabels": {"size": "big"}}, "number": 8}]},
  "loadAffinity": [
    {"storageClass": "local"},
    {"nodeSelector": {"matchLabels": {"a b": "c"}}},
    {"nodeSelector": {"matchLabels": {"disk": "fast"}}}],
  "backupPVC": {"Bad Class": {}, "gold": {"readOnly": "yes", "storageClass": "silver"}},
  "cachePVC": {"storageClass": "local", "residentThresholdInMB": "5"},
  "podLabels": {"my team": "x", "team": "storage"},
  "podAnnotations": {"a/b/c": "x", "owner": "storage"}
}`, map[string]string{"size": "big"})
	require.Len(t, problems, 8)
	require.Equal(t, configmap.Limits{Concurrency: 8, GlobalConcurrency: 4, MaxConcurrency: 8}, got.Limits)
	require.Equal(t, objects.Settings{
		LoadAffinity: []objects.LoadAffinity{
			{StorageClass: "local"},
			{Nodes: metav1.LabelSelector{MatchLabels: map[string]string{"disk": "fast"}}},
		},
		BackupClaims: map[string]objects.BackupClaim{"gold": {StorageClass: "silver"}},
		Cache:        &objects.Cache{StorageClass: "local", Limit: configmap.DefaultCacheLimit},
		Labels:       map[string]string{"team": "storage"},
		Annotations:  map[string]string{"owner": "storage"},
	}, got.Movers)
}

func TestParseOfUnknownFields(t *testing.T) {
	for name, test := range map[string]struct {
		text, path string
		section    configmap.Section
		message    string
	}{
		"a typing error at the top":       {`{"loadConcurency": {"globalConfig": 3}}`, "loadConcurency", configmap.SectionConfigMap, "did you mean loadConcurrency?"},
		"a typing error further down":     {`{"podResources": {"cpuRequests": "1"}}`, "podResources.cpuRequests", configmap.SectionPodResources, "did you mean cpuRequest?"},
		"in an element of a list":         {`{"loadConcurrency": {"perNodeConfig": [{"number": 1, "nodeSelectors": {}}]}}`, "loadConcurrency.perNodeConfig[0].nodeSelectors", configmap.SectionLoadConcurrency, "did you mean nodeSelector?"},
		"nothing that it could be":        {`{"restorePVC": {"x": 1}}`, "restorePVC.x", configmap.SectionRestorePVC, "known fields: configMapNames, ignoreDelayBinding or secretNames"},
		"nothing at the top that it is":   {`{"": 1}`, "", configmap.SectionConfigMap, "known fields: backupPVC, cachePVC"},
		"a value that could not be read":  {`{"zzzzzz": [[[{"a": null}]]]}`, "zzzzzz", configmap.SectionConfigMap, "known fields"},
		"a name as long as a short novel": {`{"` + strings.Repeat("y", 1000) + `": 1}`, strings.Repeat("y", 64) + "…", configmap.SectionConfigMap, "known fields"},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := parse(test.text, nil)
			require.Len(t, problems, 1)
			require.Equal(t, configmap.UnknownField, problems[0].Reason)
			require.Equal(t, test.path, problems[0].Path)
			require.Equal(t, test.section, problems[0].Section)
			require.Contains(t, problems[0].Message, test.message)
		})
	}
}

func TestParseLimitsTheNumberOfProblems(t *testing.T) {
	text := `{"podLabels": {` + strings.Repeat(`"a b": 1, `, 1000) + `"c": "d"}, "priorityClassName": 1}`
	got, problems := parse(text, nil)
	require.Len(t, problems, 11)
	require.Contains(t, problems[9].Message, "only the first 10")
	require.Equal(t, configmap.SectionPriorityClassName, problems[10].Section, "other sections are reported too")
	want := configmap.Defaults()
	want.Movers.Labels = map[string]string{"c": "d"}
	require.Equal(t, want, got)
}

func TestParseKeepsTheReasonOfAnUnusedValue(t *testing.T) {
	got, problems := parse(`{"podResources": {`+strings.Repeat(`"x": 1, `, 20)+`"cpuRequest": "1", "cpuLimit": "lots"}}`, nil)
	require.Len(t, problems, 11)
	require.Equal(t, configmap.InvalidValue, problems[10].Reason)
	require.Empty(t, got.Movers.Resources.Limits)
	require.Equal(t, corev1.ResourceList{"cpu": resource.MustParse("1")}, got.Movers.Resources.Requests)
}

func TestParseReadsFieldsInOtherCapitalsAsVeleroDoes(t *testing.T) {
	want, problems := parse(`{"loadConcurrency": {"globalConfig": 3}, "podResources": {"cpuRequest": "1"}, "podLabels": {"a": "b"}}`, nil)
	require.Empty(t, problems)
	got, problems := parse(`{"LoadConcurrency": {"globalconfig": 3}, "podresources": {"CPURequest": "1"}, "PODLABELS": {"a": "b"}}`, nil)
	require.Empty(t, problems)
	require.Equal(t, want, got)
}

func TestAProblemOfTheWholeConfigMapHasNoPlace(t *testing.T) {
	require.Equal(t, "configMap: no data", configmap.Problem{Section: configmap.SectionConfigMap, Message: "no data"}.String())
}
