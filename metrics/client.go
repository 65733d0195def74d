package metrics

import (
	"net/http"
	"strconv"

	"k8s.io/utils/clock"
)

// Transport returns a RoundTripper that counts the requests of a client. The hooks of client-go exist once per
// process, so they could not tell the agents of a test apart.
func (m *Metrics) Transport(next http.RoundTripper, clk clock.PassiveClock) http.RoundTripper {
	return &transport{metrics: m, next: next, clock: clk}
}

type transport struct {
	metrics *Metrics
	next    http.RoundTripper
	clock   clock.PassiveClock
}

// RoundTrip implements http.RoundTripper. A request without an answer counts with the code "error".
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
