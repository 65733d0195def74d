package metrics

import (
	"net/http"
	"strconv"

	"k8s.io/utils/clock"
)

// Transport counts the requests of a client. client-go has hooks for that, but one set for the whole
// process, so the agents of a test could not be told apart.
func (m *Metrics) Transport(next http.RoundTripper, clk clock.PassiveClock) http.RoundTripper {
	if m == nil {
		return next
	}
	return &transport{metrics: m, next: next, clock: clk}
}

type transport struct {
	metrics *Metrics
	next    http.RoundTripper
	clock   clock.PassiveClock
}

// RoundTrip implements http.RoundTripper. The code of a request without an answer is "error".
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	began := t.clock.Now()
	response, err := t.next.RoundTrip(request)
	code := "error"
	if err == nil {
		code = strconv.Itoa(response.StatusCode)
	}
	t.metrics.requests.WithLabelValues(request.Method, code).Inc()
	t.metrics.latency.WithLabelValues(request.Method).Observe(t.clock.Since(began).Seconds())
	return response, err
}
