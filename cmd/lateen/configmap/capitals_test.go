package configmap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

func TestParseReadsFieldsInOtherCapitalsAsVeleroDoes(t *testing.T) {
	want, problems := parse(`{"loadConcurrency": {"globalConfig": 3}, "podResources": {"cpuRequest": "1"}, "podLabels": {"a": "b"}}`, nil)
	require.Empty(t, problems)
	got, problems := parse(`{"LoadConcurrency": {"globalconfig": 3}, "podresources": {"CPURequest": "1"}, "PODLABELS": {"a": "b"}}`, nil)
	require.Empty(t, problems)
	require.Equal(t, want, got)
}

func TestParseOfAFieldInTwoCapitalizations(t *testing.T) {
	_, problems := parse(`{"priorityClassName": "low", "PriorityClassName": "high"}`, nil)
	require.Len(t, problems, 2)
	for _, problem := range problems {
		require.Equal(t, configmap.DuplicateField, problem.Reason)
		require.Equal(t, configmap.SectionPriorityClassName, problem.Section)
	}
}
