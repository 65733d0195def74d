package config_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/config"
)

// The corpus holds ConfigMaps as users write them. A .yaml file is a whole ConfigMap. Any other file is the value of
// its only key. The expected Problems of a file are next to it, in a file of the same name with the suffix .problems.
const corpus = "testdata/corpus"

var update = flag.Bool("update", false, "write the expected Problems")

func TestCorpus(t *testing.T) {
	files := corpusFiles(t)
	require.GreaterOrEqual(t, len(files), 60)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			problems := validate(t, file, corpusData(t, file))
			got := listed(problems)
			golden := file + ".problems"
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err, "go test ./cmd/lateen/config -run Corpus -update writes it")
			require.Equal(t, string(want), got)
			// -update accepts no Problem in a good ConfigMap, and none without a Problem in a bad one
			require.Equal(t, !strings.Contains(filepath.Base(file), "good"), len(problems) > 0)
		})
	}
}

func corpusFiles(tb testing.TB) []string {
	tb.Helper()
	all, err := filepath.Glob(filepath.Join(corpus, "*"))
	require.NoError(tb, err)
	return slices.DeleteFunc(all, func(file string) bool { return filepath.Ext(file) == ".problems" })
}

func corpusData(tb testing.TB, file string) map[string]string {
	tb.Helper()
	text, err := os.ReadFile(file)
	require.NoError(tb, err)
	if filepath.Ext(file) != ".yaml" {
		return map[string]string{"config": string(text)}
	}
	var found corev1.ConfigMap
	require.NoError(tb, yaml.UnmarshalStrict(text, &found))
	return found.Data
}

// validate parses a file as the kind of ConfigMap that its name declares. It requires that a value with a Problem has the
// same effect as no value.
func validate(t *testing.T, file string, data map[string]string) []config.Problem {
	t.Helper()
	if strings.HasPrefix(filepath.Base(file), "repository-") {
		limit, problems := config.ParseRepository(data)
		if checkProblems(t, problems)[config.SectionBackupRepository] {
			require.Equal(t, config.DefaultCacheLimit, limit)
		}
		return problems
	}
	labels := map[string]string{"size": "big"}
	got, problems := config.Parse(data, labels)
	if checkProblems(t, problems)[config.SectionConfigMap] {
		require.Equal(t, config.Defaults(), got)
		return problems
	}
	for _, text := range data {
		checkWithout(t, text, got, problems, labels)
	}
	return problems
}

func listed(problems []config.Problem) string {
	var text strings.Builder
	for _, problem := range problems {
		fmt.Fprintf(&text, "%s %s\n", problem.Reason, problem)
	}
	return text.String()
}

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
			require.Equal(t, config.Defaults(), got)
			require.Contains(t, broken, config.SectionConfigMap)
		}
		checkRanges(t, got)

		limit, problems := config.ParseRepository(map[string]string{"kopia": text})
		checkPositions(t, text, "", problems)
		checkProblems(t, problems)
		require.True(t, 1<<20 <= limit && limit <= math.MaxInt32<<20, limit)

		jobs, problems := config.ParseMaintenance(map[string]string{"global": text}, repositoryKey)
		checkPositions(t, text, "global", problems)
		checkProblems(t, problems)
		require.GreaterOrEqual(t, jobs.Jobs.Keep, 0)
	})
}

// checkPositions requires that each Problem has a valid line and column, or concerns the text as a whole.
func checkPositions(t *testing.T, text, whole string, problems []config.Problem) {
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
	lines := strings.Split(text, "\n")
	return 1 <= line && line <= len(lines) && 1 <= column && column <= len(lines[line-1])+1
}

// checkRanges requires that the API server and the agent can use every accepted value.
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
