package configmap_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/reconcile/seeds"
)

// TestParseOfRandomBytes cuts, doubles and overwrites text. The parser returns a result for each.
func TestParseOfRandomBytes(t *testing.T) {
	seeds.Each(t, 1, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		for range 1000 {
			text := []byte(fullConfig)
			for range 1 + random.IntN(3) {
				from := random.IntN(len(text))
				to := from + random.IntN(len(text)-from)
				switch random.IntN(3) {
				case 0:
					text = append(text[:from:from], text[to:]...)
				case 1:
					text = append(text[:to:to], text[from:]...)
				case 2:
					text[from] = "{}[]\",:0a\x00\xff\n"[random.IntN(12)]
				}
				if len(text) == 0 {
					break
				}
			}
			got, problems := parse(string(text), nil)
			broken := checkProblems(t, problems)
			if !json.Valid(text) {
				require.Equal(t, configmap.Defaults(), got, "%s", text)
				require.True(t, broken[configmap.SectionConfigMap], "%s", text)
			}
		}
	})
}

func TestParseOfAMebibyte(t *testing.T) {
	var text strings.Builder
	text.WriteString(`{"podLabels": {"team": "storage"}`)
	for text.Len() < 1<<20 {
		text.WriteString(`, "unknown field": {"a": [1, 2, 3]}`)
	}
	text.WriteString("}")
	got, problems := parse(text.String(), nil)
	require.Len(t, problems, 10)
	require.Equal(t, map[string]string{"team": "storage"}, got.Movers.Labels)
}
