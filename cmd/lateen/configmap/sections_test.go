package configmap_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/objects"
)

func TestParseOmitsFieldsWithoutEffect(t *testing.T) {
	for name, test := range map[string]struct {
		text, path, message string
		want                objects.Settings
	}{
		"the label of Velero's movers": {
			`{"podLabels": {"velero.io/data-upload": "x", "team": "storage"}}`, "podLabels.velero.io/data-upload", "velero.io/data-upload is reserved",
			objects.Settings{Labels: map[string]string{"team": "storage"}},
		},
		"a label of ours": {
			`{"podLabels": {"team": "storage", "lateen.dev/mover": "false"}}`, "podLabels.lateen.dev/mover", "lateen.dev/mover is reserved",
			objects.Settings{Labels: map[string]string{"team": "storage"}},
		},
		"an annotation of ours": {
			`{"podAnnotations": {"lateen.dev/attempt": "7", "a": "b"}}`, "podAnnotations.lateen.dev/attempt", "reserved for the agent",
			objects.Settings{Annotations: map[string]string{"a": "b"}},
		},
		"a SELinux type without readOnly": {
			`{"backupPVC": {"gold": {"spcNoRelabeling": true, "storageClass": "silver"}}}`, "backupPVC.gold", "no effect without readOnly",
			objects.Settings{BackupClaims: map[string]objects.BackupClaim{"gold": {StorageClass: "silver", SPCNoRelabeling: true}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := parse(test.text, nil)
			require.Equal(t, test.want, got.Movers, "the rest is in force")
			require.Len(t, problems, 1)
			require.Equal(t, configmap.Ignored, problems[0].Reason)
			require.Equal(t, test.path, problems[0].Path)
			require.Contains(t, problems[0].Message, test.message)
		})
	}
}

func TestParseRefusesAMisspelledNodeSelector(t *testing.T) {
	got, problems := parse(`{"loadConcurrency": {"perNodeConfig": [{"number": 9, "nodeSelector": {"matchLabel": {"size": "big"}}}]}}`, nil)
	require.Len(t, problems, 2)
	require.Equal(t, configmap.UnknownField, problems[0].Reason)
	require.Equal(t, configmap.Missing, problems[1].Reason)
	require.Equal(t, configmap.Defaults(), got)
}

func TestParseConcurrencyOfANode(t *testing.T) {
	const rules = `{"loadConcurrency": {"globalConfig": 3, "perNodeConfig": [
	  {"nodeSelector": {"matchLabels": {"size": "big"}}, "number": 9},
	  {"nodeSelector": {"matchLabels": {"zone": "a"}}, "number": 6},
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
		t.Run(name, func(t *testing.T) {
			got, problems := parse(rules, test.labels)
			require.Empty(t, problems)
			require.Equal(t, configmap.Limits{Concurrency: test.want, GlobalConcurrency: 3, MaxConcurrency: 9}, got.Limits)
		})
	}
}

func TestParseResourcesOneByOne(t *testing.T) {
	got, problems := parse(`{"podResources": {"memoryLimit": "1Gi", "cpuLimit": "0", "cpuRequest": "3", "memoryRequest": ""}}`, nil)
	require.Empty(t, problems)
	require.Equal(t, corev1.ResourceList{"cpu": resource.MustParse("3")}, got.Movers.Resources.Requests, "a limit of 0 is none")
	require.Equal(t, corev1.ResourceList{"memory": resource.MustParse("1Gi")}, got.Movers.Resources.Limits)
}
