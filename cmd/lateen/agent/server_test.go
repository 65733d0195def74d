package agent

import (
	"context"
	"io"
	"net/http"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/deploy"
)

func serve(t *testing.T, profiling bool) *Server {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "a_gauge", Help: "One."}))
	server, err := Listen("127.0.0.1:0", registry, profiling)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve() }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.NoError(t, <-ended)
	})
	return server
}

func fetch(t *testing.T, server *Server, path string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Address()+path, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

func TestReadyzSucceedsOnceEveryTransferWasReconciled(t *testing.T) {
	for _, path := range []string{"/readyz", deploy.ReadyPath} {
		server := serve(t, false)
		code, text := fetch(t, server, path)
		require.Equal(t, http.StatusServiceUnavailable, code, "before the caches are filled")
		require.Contains(t, text, "not every transfer")
		server.ready.Store(true)
		code, text = fetch(t, server, path)
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, "ok\n", text)
	}
}

func TestOneAddressServesMetricsHealthAndProfilesOnRequest(t *testing.T) {
	plain, profiled := serve(t, false), serve(t, true)
	code, text := fetch(t, plain, "/metrics")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "a_gauge 0")
	for _, path := range []string{"/healthz", deploy.LivePath} {
		code, text = fetch(t, plain, path)
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, "ok\n", text)
	}
	code, _ = fetch(t, plain, "/debug/pprof/")
	require.Equal(t, http.StatusNotFound, code)
	for _, profile := range []string{"", "heap", "symbol", "trace?seconds=0.01"} {
		code, _ = fetch(t, profiled, "/debug/pprof/"+profile)
		require.Equal(t, http.StatusOK, code, profile)
	}
	require.NoError(t, pprof.StartCPUProfile(io.Discard))
	defer pprof.StopCPUProfile()
	code, text = fetch(t, profiled, "/debug/pprof/profile")
	require.Equal(t, http.StatusInternalServerError, code, text)
	require.Contains(t, text, "cpu profiling already in use")
}

func TestAnAddressInUseIsNamedInTheError(t *testing.T) {
	_, err := Listen(serve(t, false).Address(), prometheus.NewRegistry(), false)
	require.ErrorContains(t, err, "--metrics-address 127.0.0.1:")
}

// answered is a RoundTripper without an answer if it has an error.
type answered struct{ error }

func (a answered) RoundTrip(*http.Request) (*http.Response, error) { return nil, a.error }

func TestAnAgentIsNotReadyWhileTheAPIServerDoesNotAnswer(t *testing.T) {
	server, clk := serve(t, false), clocktesting.NewFakePassiveClock(time.Now())
	server.ready.Store(true)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, step := range []struct {
		passes  time.Duration
		context context.Context
		err     error
		ready   int
	}{
		{0, t.Context(), io.EOF, http.StatusOK},
		{unreachableAfter, canceled, io.EOF, http.StatusOK}, // by its caller
		{0, t.Context(), nil, http.StatusOK},
		{0, t.Context(), io.EOF, http.StatusOK},
		{unreachableAfter - 1, t.Context(), io.EOF, http.StatusOK},
		{1, t.Context(), io.EOF, http.StatusServiceUnavailable},
		{0, canceled, nil, http.StatusOK}, // too late
	} {
		clk.SetTime(clk.Now().Add(step.passes))
		_, err := (&connection{server, answered{step.err}, clk}).RoundTrip((&http.Request{}).WithContext(step.context)) //nolint:bodyclose // none
		require.Equal(t, step.err, err)
		code, text := fetch(t, server, "/readyz")
		require.Equal(t, step.ready, code, "%+v: %s", step, text)
	}
}
