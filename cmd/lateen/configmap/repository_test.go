package configmap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

func TestParseRepository(t *testing.T) {
	for name, test := range map[string]struct {
		text  string
		limit int64 // in MiB
	}{
		"an empty object":                  {`{}`, 5000},
		"a number":                         {`{"cacheLimitMB": 2048}`, 2048},
		"a number in quotes":               {`{"cacheLimitMB": "2048"}`, 2048},
		"null is left out":                 {`{"cacheLimitMB": null}`, 5000},
		"fields of the server are skipped": {`{"cacheLimitMB": 1, "fullMaintenanceInterval": "fastGC"}`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			limit, problems := configmap.ParseRepository(map[string]string{"kopia": test.text, "other": "{"})
			require.Empty(t, problems)
			require.Equal(t, test.limit*1024*1024, limit)
		})
	}
}

func TestParseInvalidRepository(t *testing.T) {
	for name, test := range map[string]struct {
		data         map[string]string
		path         string
		reason       configmap.Reason
		line, column int
		message      string
	}{
		"no data":                    {nil, "", configmap.Empty, 0, 0, "add key kopia"},
		"no key kopia":               {map[string]string{"repo.json": `{"cacheLimitMB": 7}`}, "", configmap.Missing, 0, 0, "key kopia is missing, there is repo.json"},
		"a blank value":              {map[string]string{"kopia": " \n"}, "", configmap.Empty, 0, 0, "key kopia is empty"},
		"no JSON":                    {map[string]string{"kopia": "cacheLimitMB: 7"}, "", configmap.InvalidJSON, 1, 1, "invalid JSON"},
		"a list":                     {map[string]string{"kopia": `[]`}, "kopia", configmap.WrongType, 1, 1, "got a list, want an object"},
		"a limit of 0":               {map[string]string{"kopia": `{"cacheLimitMB": 0}`}, "kopia.cacheLimitMB", configmap.InvalidValue, 1, 18, "from 1"},
		"a limit under 0, in quotes": {map[string]string{"kopia": `{"cacheLimitMB": "-4"}`}, "kopia.cacheLimitMB", configmap.InvalidValue, 1, 18, "-4 is not an integer"},
		"a limit with a unit":        {map[string]string{"kopia": `{"cacheLimitMB": "4Gi"}`}, "kopia.cacheLimitMB", configmap.InvalidValue, 1, 18, "4Gi is not an integer"},
		"an empty limit":             {map[string]string{"kopia": `{"cacheLimitMB": ""}`}, "kopia.cacheLimitMB", configmap.InvalidValue, 1, 18, "is not an integer"},
		"a limit that is a fraction": {map[string]string{"kopia": `{"cacheLimitMB": 0.5}`}, "kopia.cacheLimitMB", configmap.InvalidValue, 1, 18, "0.5"},
		"a limit that is an object":  {map[string]string{"kopia": `{"cacheLimitMB": {}}`}, "kopia.cacheLimitMB", configmap.WrongType, 1, 18, "got an object, want an unquoted integer"},
		"the limit twice":            {map[string]string{"kopia": `{"cacheLimitMB": 1, "cacheLimitMB": 2}`}, "kopia.cacheLimitMB", configmap.DuplicateField, 1, 18, "2 times"},
		"a typing error":             {map[string]string{"kopia": "{\n  \"cacheLimitMb\": 7}"}, "kopia.cacheLimitMb", configmap.UnknownField, 2, 19, "did you mean cacheLimitMB?"},
		"an unknown name":            {map[string]string{"kopia": `{"enableCompression": true}`}, "kopia.enableCompression", configmap.UnknownField, 1, 23, "known fields: cacheLimitMB or fullMaintenanceInterval"},
	} {
		t.Run(name, func(t *testing.T) {
			limit, problems := configmap.ParseRepository(test.data)
			require.Equal(t, configmap.DefaultCacheLimit, limit)
			require.NotEmpty(t, problems)
			problem := problems[0]
			require.Equal(t, configmap.SectionBackupRepository, problem.Section)
			require.Equal(t, test.path, problem.Path)
			require.Equal(t, test.reason, problem.Reason)
			require.Equal(t, []int{test.line, test.column}, []int{problem.Line, problem.Column})
			require.Contains(t, problem.Message, test.message)
		})
	}
}
