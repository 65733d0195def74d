package configmap_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
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
			require.NoError(t, err, "go test ./cmd/lateen/configmap -run Corpus -update writes it")
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
	var files []string
	for _, file := range all {
		if filepath.Ext(file) != ".problems" {
			files = append(files, file)
		}
	}
	return files
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
func validate(t *testing.T, file string, data map[string]string) []configmap.Problem {
	t.Helper()
	if strings.HasPrefix(filepath.Base(file), "repository-") {
		limit, problems := configmap.ParseRepository(data)
		if checkProblems(t, problems)[configmap.SectionBackupRepository] {
			require.Equal(t, configmap.DefaultCacheLimit, limit)
		}
		return problems
	}
	labels := map[string]string{"size": "big"}
	got, problems := configmap.Parse(data, labels)
	if checkProblems(t, problems)[configmap.SectionConfigMap] {
		require.Equal(t, configmap.Defaults(), got)
		return problems
	}
	for _, text := range data {
		checkWithout(t, text, got, problems, labels)
	}
	return problems
}

func listed(problems []configmap.Problem) string {
	var text strings.Builder
	for _, problem := range problems {
		fmt.Fprintf(&text, "%s %s\n", problem.Reason, problem)
	}
	return text.String()
}
