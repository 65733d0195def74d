package metrics_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
)

type answers struct {
	response *http.Response
	err      error
}

func (a answers) RoundTrip(*http.Request) (*http.Response, error) { return a.response, a.err }

func TestRequestsAreCountedPerAgent(t *testing.T) {
	m, registry := newMetrics()
	_, other := newMetrics()
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	send := func(method string, next answers) {
		request, err := http.NewRequestWithContext(t.Context(), method, "https://192.0.2.1/api", nil)
		require.NoError(t, err)
		response, err := m.Transport(next, clock).RoundTrip(request)
		require.Equal(t, next.response, response)
		require.ErrorIs(t, err, next.err)
		if response != nil {
			require.NoError(t, response.Body.Close())
		}
	}
	answer := func(code int) answers {
		return answers{response: &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(""))}}
	}
	send(http.MethodGet, answer(200))
	send(http.MethodGet, answer(200))
	send(http.MethodPatch, answer(409))
	send(http.MethodGet, answers{err: errors.New("connection refused")})
	requireSeries(t, registry, `
		rest_client_requests_total{code="200",method="GET"} 2
		rest_client_requests_total{code="409",method="PATCH"} 1
		rest_client_requests_total{code="error",method="GET"} 1
	`, "rest_client_requests_total")
	requireSeries(t, registry, `
		rest_client_request_duration_seconds_count{verb="GET"} 3
		rest_client_request_duration_seconds_count{verb="PATCH"} 1
	`, "rest_client_request_duration_seconds_count") // the label is called verb, as in Kubernetes
	require.Empty(t, series(other, "rest_client_requests_total"))
}

func TestWorkqueuesHaveTheNamesOfKubernetes(t *testing.T) {
	m, registry := newMetrics()
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Hour, time.Hour), // no retry during the test
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "podvolumebackup", MetricsProvider: m.Workqueues()})
	defer queue.ShutDown()
	queue.Add("a")
	queue.Add("b")
	key, _ := queue.Get()
	queue.Done(key)
	queue.AddRateLimited("c")
	requireSeries(t, registry, `
		workqueue_depth{name="podvolumebackup"} 1
		workqueue_adds_total{name="podvolumebackup"} 2
		workqueue_retries_total{name="podvolumebackup"} 1
	`, "workqueue_depth", "workqueue_adds_total", "workqueue_retries_total")
	for _, name := range []string{
		"workqueue_queue_duration_seconds_count", "workqueue_work_duration_seconds_count",
		"workqueue_unfinished_work_seconds", "workqueue_longest_running_processor_seconds",
	} {
		require.Len(t, series(registry, name), 1, name)
	}
}
