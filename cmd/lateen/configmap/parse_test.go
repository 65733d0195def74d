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
