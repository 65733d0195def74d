package config_test

import (
	"encoding/json"
	"math"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lateen-project/lateen/cmd/lateen/config"
)

// FuzzParse begins with the corpus. Whatever the text is: there is an answer, it is the same each time, every
// Problem tells where it is and what to do, and what is accepted is within its range.
func FuzzParse(f *testing.F) {
	for _, file := range corpusFiles(f) {
		for _, text := range corpusData(f, file) {
			f.Add(text, "size", "big")
		}
	}
	f.Fuzz(func(t *testing.T, text, label, value string) {
		got, problems := parse(text, map[string]string{label: value})
		requeue, same := parse(text, map[string]string{label: value})
		require.Equal(t, got, requeue)
		require.Equal(t, problems, same)
		checkPlaces(t, text, "", problems)
		broken := checkProblems(t, problems)
		if !json.Valid([]byte(text)) || !utf8.ValidString(text) {
			require.Equal(t, config.Defaults(), got)
			require.Contains(t, broken, config.SectionConfigMap)
		}
		checkRanges(t, got)

		limit, problems := config.ParseRepository(map[string]string{"kopia": text})
		checkPlaces(t, text, "", problems)
		checkProblems(t, problems)
		require.True(t, 1<<20 <= limit && limit <= math.MaxInt32<<20, limit)

		jobs, problems := config.ParseMaintenance(map[string]string{"global": text}, repositoryKey)
		checkPlaces(t, text, "global", problems)
		checkProblems(t, problems)
		require.GreaterOrEqual(t, jobs.Jobs.Keep, 0)
	})
}

// checkPlaces holds that a Problem is where an editor can find it, or is one of the text as a whole.
func checkPlaces(t *testing.T, text, whole string, problems []config.Problem) {
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

// exists tells whether a text has this line and column, of which the last may be the end.
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

// checkRanges holds that nothing is accepted that the API server or the agent could not use.
func checkRanges(t *testing.T, got config.Config) {
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
