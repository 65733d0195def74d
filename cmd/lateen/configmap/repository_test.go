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
