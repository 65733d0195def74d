package configmap_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/objects"
)

// The corpus has the Problem of each.
func TestFieldsWithoutEffectAreOmittedAndTheRestIsInForce(t *testing.T) {
	got, problems := parse(`{
		"podLabels": {"velero.io/data-upload": "x", "team": "storage", "lateen.dev/mover": "false"},
		"podAnnotations": {"lateen.dev/attempt": "7", "a": "b"},
		"backupPVC": {"gold": {"spcNoRelabeling": true, "storageClass": "silver"}}}`, nil)
	require.Len(t, problems, 4)
	require.Equal(t, objects.Settings{
		Labels: map[string]string{"team": "storage"}, Annotations: map[string]string{"a": "b"},
		BackupClaims: map[string]objects.BackupClaim{"gold": {StorageClass: "silver", SPCNoRelabeling: true}},
	}, got.Movers)
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
