package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiFault is something that a request may meet.
type apiFault struct {
	name   string
	answer func(asked *http.Request, next http.RoundTripper) (*http.Response, error)
}

// meets tells whether a request can meet the fault: a read has nothing to be in conflict with.
func (f apiFault) meets(what request) bool {
	reads := what.verb == "get" || what.verb == "list" || what.verb == "watch"
	return !reads || f.name != conflict
}

// conflict is the name of that fault.
const conflict = "a 409"

// apiFaults are those of the table: what an API server, or what is between it and the agent, does at times.
func apiFaults() []apiFault {
	return []apiFault{
		refusing(http.StatusConflict, metav1.StatusReasonConflict),
		refusing(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests),
		refusing(http.StatusInternalServerError, metav1.StatusReasonInternalError),
		refusing(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable),
		{name: "a timeout before the request", answer: func(*http.Request, http.RoundTripper) (*http.Response, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
		}},
		{name: "a timeout after the request", answer: func(asked *http.Request, next http.RoundTripper) (*http.Response, error) {
			response, err := next.RoundTrip(asked)
			if err == nil {
				_ = response.Body.Close() // nobody hears it
			}
			return nil, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
		}},
		{name: "a reset connection", answer: func(*http.Request, http.RoundTripper) (*http.Response, error) {
			return nil, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
		}},
	}
}

// refusing is an answer that the request was not carried out.
func refusing(code int, reason metav1.StatusReason) apiFault {
	return apiFault{name: fmt.Sprintf("a %d", code), answer: func(asked *http.Request, _ http.RoundTripper) (*http.Response, error) {
		if asked.Body != nil {
			_ = asked.Body.Close() // as a RoundTripper has to
		}
		status := metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: int32(code), Reason: reason, Message: "as the test wants it", //nolint:gosec // an HTTP status
		}
		header := http.Header{"Content-Type": {"application/json"}}
		if code == http.StatusTooManyRequests {
			header.Set("Retry-After", "1") // seconds
		}
		body, err := json.Marshal(status)
		return &http.Response{
			StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: asked,
		}, err
	}}
}
