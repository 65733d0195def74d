package configmap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

func parsed(t *testing.T, text string) configmap.Config {
	t.Helper()
	config, problems := configmap.Parse(map[string]string{"any": text}, map[string]string{"disk": "ssd"})
	require.Empty(t, problems)
	return config
}

const inForce = `{
	"priorityClassName": "low", "podLabels": {"a": "1"}, "podResources": {"cpuLimit": "1"},
	"loadConcurrency": {"globalConfig": 2, "prepareQueueLength": 5},
	"backupPVC": {"fast": {"readOnly": true}}, "cachePVC": {"storageClass": "fast"}
}`

func TestAnEditOfAnyFieldIsAppliedOrNeedsARestart(t *testing.T) {
	for text, want := range map[string]configmap.Edit{
		`{"priorityClassName": "high"}`:                                    {Applied: []string{"priorityClassName"}},
		`{"loadConcurrency": {"globalConfig": 3}}`:                         {Applied: []string{"loadConcurrency"}},
		`{"loadConcurrency": {"perNodeConfig": [{"number": 3}]}}`:          {Applied: []string{"loadConcurrency"}},
		`{"loadAffinity": [{"nodeSelector": {"matchLabels": {"a":"b"}}}]}`: {Applied: []string{"loadAffinity"}},
		`{"podResources": {"memoryLimit": "1Gi"}}`:                         {Applied: []string{"podResources"}},
		`{"podLabels": {"a": "1"}}`:                                        {Applied: []string{"podLabels"}},
		`{"podAnnotations": {"a": "1"}}`:                                   {Applied: []string{"podAnnotations"}},
		`{"tolerations": [{"key": "a", "operator": "Exists"}]}`:            {Applied: []string{"tolerations"}},
		`{"privilegedFsBackup": true}`:                                     {Applied: []string{"privilegedFsBackup"}},
		`{"loadConcurrency": {"prepareQueueLength": 3}}`:                   {Pending: []string{"loadConcurrency.prepareQueueLength"}},
		`{"backupPVC": {"fast": {"readOnly": true}}}`:                      {Pending: []string{"backupPVC"}},
		`{"restorePVC": {"ignoreDelayBinding": true}}`:                     {Pending: []string{"restorePVC"}},
		`{"restorePVC": {"secretNames": ["a"]}}`:                           {Pending: []string{"restorePVC"}},
		`{"cachePVC": {"storageClass": "fast"}}`:                           {Pending: []string{"cachePVC"}},
		`{}`:                                                               {},
	} {
		t.Run(text, func(t *testing.T) {
			got := configmap.Apply(parsed(t, `{}`), parsed(t, text))
			require.Equal(t, want.Applied, got.Applied)
			require.Equal(t, want.Pending, got.Pending)
			if len(want.Pending) > 0 {
				require.Equal(t, parsed(t, `{}`), got.Config, "the field in force stays in force")
			} else {
				require.Equal(t, parsed(t, text), got.Config)
			}
		})
	}
}

func TestAnEditAppliesWhatIsSafeAndKeepsTheRest(t *testing.T) {
	edited := parsed(t, `{"podLabels": {"a": "2"}, "loadConcurrency": {"globalConfig": 4}}`)
	got := configmap.Apply(parsed(t, inForce), edited)
	require.Equal(t, []string{"priorityClassName", "loadConcurrency", "podResources", "podLabels"}, got.Applied)
	require.Equal(t, []string{"loadConcurrency.prepareQueueLength", "backupPVC", "cachePVC"}, got.Pending)
	require.Equal(t, 4, got.Config.Concurrency)
	require.Equal(t, 5, got.Config.PrepareQueueLength)
	require.Equal(t, map[string]string{"a": "2"}, got.Config.Movers.Labels)
	require.True(t, got.Config.Movers.BackupClaims["fast"].ReadOnly)
	require.Equal(t, "fast", got.Config.Movers.Cache.StorageClass)
}
