package configmap_test

import (
	"encoding/json"
	"math"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

// FuzzParse starts with the corpus. For any text, the parser returns the same result each time. Every Problem has a
// place and a fix, and every accepted value is in its range.
func FuzzParse(f *testing.F) {
	for _, file := range corpusFiles(f) {
		for _, text := range corpusData(f, file) {
			f.Add(text, "size", "big")
		}
	}
	f.Fuzz(func(t *testing.T, text, label, value string) {
		got, problems := parse(text, map[string]string{label: value})
		second, same := parse(text, map[string]string{label: value})
		require.Equal(t, got, second)
		require.Equal(t, problems, same)
		checkPositions(t, text, "", problems)
		broken := checkProblems(t, problems)
		if !json.Valid([]byte(text)) || !utf8.ValidString(text) {
			require.Equal(t, configmap.Defaults(), got)
			require.Contains(t, broken, configmap.SectionConfigMap)
		}
		checkRanges(t, got)

		limit, problems := configmap.ParseRepository(map[string]string{"kopia": text})
		checkPositions(t, text, "", problems)
		checkProblems(t, problems)
		require.True(t, 1<<20 <= limit && limit <= math.MaxInt32<<20, limit)

		jobs, problems := configmap.ParseMaintenance(map[string]string{"global": text}, repositoryKey)
		checkPositions(t, text, "global", problems)
		checkProblems(t, problems)
		require.GreaterOrEqual(t, jobs.Jobs.Keep, 0)
	})
}

// checkPositions requires that each Problem has a valid line and column, or concerns the text as a whole.
func checkPositions(t *testing.T, text, whole string, problems []configmap.Problem) {
	t.Helper()
	for _, problem := range problems {
		if problem.Line == 0 {
			require.Equal(t, whole, problem.Path)
			require.Zero(t, problem.Column)
			continue
		}
		require.True(t, exists(text, problem.Line, problem.Column), "%s", problem)
	}
}

// exists reports whether a text has this line and column. The position after the last byte counts too.
func exists(text string, line, column int) bool {
	for _, one := range []byte(text) {
		switch {
		case line == 1:
			column--
			if column == 0 {
				return true
			}
			if one == '\n' {
				return false
			}
		case one == '\n':
			line--
		}
	}
	return line == 1 && column <= 1
}

// checkRanges requires that the API server and the agent can use every accepted value.
func checkRanges(t *testing.T, got configmap.Config) {
	t.Helper()
	for _, number := range []int{got.Concurrency, got.GlobalConcurrency, got.MaxConcurrency} {
		require.True(t, 1 <= number && number <= math.MaxInt32, number)
	}
	require.True(t, 0 <= got.PrepareQueueLength && got.PrepareQueueLength <= math.MaxInt32, got.PrepareQueueLength)
	require.LessOrEqual(t, got.Concurrency, got.MaxConcurrency)
	names := []string{got.PriorityClassName}
	movers := got.Movers
	for source, claim := range movers.BackupClaims {
		names = append(names, source, claim.StorageClass)
	}
	for _, one := range movers.LoadAffinity {
		names = append(names, one.StorageClass)
		require.NotZero(t, len(one.StorageClass)+len(one.Nodes.MatchLabels)+len(one.Nodes.MatchExpressions))
	}
	if movers.Cache != nil {
		names = append(names, movers.Cache.StorageClass)
		require.NotEmpty(t, movers.Cache.StorageClass)
		require.GreaterOrEqual(t, movers.Cache.Threshold, int64(0))
	}
	for _, name := range names {
		if name != "" {
			require.Empty(t, validation.IsDNS1123Subdomain(name))
		}
	}
	for name, value := range movers.Labels {
		require.Empty(t, append(validation.IsQualifiedName(name), validation.IsValidLabelValue(value)...))
	}
	for name, amount := range movers.Resources.Requests {
		require.Positive(t, amount.Sign())
		if limit, ok := movers.Resources.Limits[name]; ok {
			require.LessOrEqual(t, amount.Cmp(limit), 0)
		}
	}
}
