package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const page = `# HELP lateen_bytes_moved_total Bytes.
# TYPE lateen_bytes_moved_total counter
lateen_bytes_moved_total{kind="podvolumebackup"} 0
lateen_priority_class_info{configured="a",consumer="data-mover",effective=""} 1
lateen_priority_class_fallbacks_total{consumer="data-mover",reason="forbidden"} 0
lateen_priority_class_fallbacks_total{consumer="data-mover",reason="not_found"} 1
`

func TestMetricsAreHeldToTheExactLine(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, page)
	}))
	defer server.Close()
	scraped, err := scrape(t.Context(), server.URL)
	require.NoError(t, err)

	require.NoError(t, scraped.expect(`lateen_priority_class_fallbacks_total{consumer="data-mover",reason="not_found"} 1`))
	err = scraped.expect(`lateen_priority_class_fallbacks_total{consumer="data-mover",reason="not_found"} 2`)
	require.ErrorContains(t, err, `reason=\"not_found\"} 1`, "the error shows what is there")
	require.Error(t, scraped.expect(`lateen_priority_class_fallbacks_total{consumer="data-mover"} 1`))
	require.Equal(t, []string{
		`lateen_priority_class_info{configured="a",consumer="data-mover",effective=""} 1`,
		`lateen_priority_class_fallbacks_total{consumer="data-mover",reason="not_found"} 1`,
	}, scraped.shown(), "what is 0 is not shown")
}

func TestAnAgentThatIsNotWellIsAnError(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "caches are not synced", http.StatusServiceUnavailable)
	}))
	defer server.Close()
	_, err := get(t.Context(), server.URL+"/readyz")
	require.ErrorContains(t, err, "503 Service Unavailable: caches are not synced")
}

func TestTheLogOfTheAgentIsShownWithoutThatOfMovers(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	text := "one\nBegin of mover log\nnoise\nnoise\nEnd of mover log\ntwo\n"
	require.NoError(t, os.WriteFile(log, []byte(text), 0o600))
	require.Equal(t, []string{"one", "Begin of mover log", "End of mover log", "two"}, program{log: log}.tail())
}

func TestAnAgentThatDoesNotStartIsAnErrorAndLeavesNothing(t *testing.T) {
	broken := program{binary: "/bin/false", log: filepath.Join(t.TempDir(), "log")}
	_, err := broken.start(t.Context())
	require.ErrorContains(t, err, "the agent ended by itself: exit status 1")
}
