package exposer

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// logged returns an exposer on an API server with one log, and the query of the last request.
func logged(t *testing.T, log string) (e *Exposer, requests *url.Values) {
	t.Helper()
	requests = &url.Values{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*requests = r.URL.Query()
		text := log
		if lines := requests.Get("tailLines"); lines == "10" {
			all := strings.SplitAfter(log, "\n")
			text = strings.Join(all[max(len(all)-11, 0):], "")
		}
		_, _ = fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	return &Exposer{Client: client}, requests
}

func TestTheEndOfALogIsKept(t *testing.T) {
	var long strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&long, "line %06d says something\n", i) // 2.4 MiB
	}
	for name, test := range map[string]struct {
		log, starts, ends string
		bytes             int // upper limit
	}{
		"of 2 MiB":                   {log: long.String(), starts: "line ", ends: "line 099999 says something\n", bytes: 1 << 20},
		"that is short":              {log: "one\ntwo\n", starts: "one\n", ends: "two\n", bytes: 8},
		"that is empty":              {},
		"of one line that is 3 MiB":  {log: strings.Repeat("x", 3<<20), starts: "x", ends: "x", bytes: 1 << 20},
		"of one byte too many":       {log: strings.Repeat("x", 1<<20+1), starts: "x", ends: "x", bytes: 1 << 20},
		"that has exactly the bytes": {log: strings.Repeat("x", 1<<20-1) + "\n", starts: "x", ends: "x\n", bytes: 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			e, requests := logged(t, test.log)
			text, err := e.Log(t.Context(), mover())
			require.NoError(t, err)
			require.LessOrEqual(t, len(text), test.bytes)
			require.True(t, strings.HasPrefix(string(text), test.starts))
			require.True(t, strings.HasSuffix(string(text), test.ends))
			require.Equal(t, url.Values{"container": {"b1-uid"}}, *requests, "the whole log of the mover alone")
		})
	}
	e, _ := logged(t, long.String())
	text, err := e.Log(t.Context(), mover())
	require.NoError(t, err)
	require.Greater(t, len(text), 1<<20-100, "no more is dropped than has to be")
}

func TestOnlyTheLastLinesOfALogAreFetched(t *testing.T) {
	e, requests := logged(t, strings.Repeat("early\n", 1<<19)+strings.Repeat("late\n", 9)+"last\n")
	text, err := e.LastLines(t.Context(), mover(), 10)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("late\n", 9)+"last", string(text))
	require.Equal(t, url.Values{"container": {"b1-uid"}, "tailLines": {"10"}}, *requests)
}
