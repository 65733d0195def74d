package metrics

import (
	"net/http"
	"strconv"
	"time"
)

// Transport counts the requests of a client. client-go has hooks for that, but one set for the whole
// process, so the agents of a test could not be told apart.
func (m *Metrics) Transport(next http.RoundTripper) http.RoundTripper {
	if m == nil {
		return next
	}
	return &transport{metrics: m, next: next}
}

type transport struct {
	metrics *Metrics
	next    http.RoundTripper
}

// RoundTrip implements http.RoundTripper. The code of a request without an answer is "error".
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	began := time.Now()
	response, err := t.next.RoundTrip(request)
	code := "error"
	if err == nil {
		code = strconv.Itoa(response.StatusCode)
	}
	t.metrics.requests.WithLabelValues(request.Method, code).Inc()
	t.metrics.latency.WithLabelValues(request.Method).Observe(time.Since(began).Seconds())
	return response, err
}
