package integration

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"

	"github.com/lateen-project/lateen/test/fixture"
)

// apiFault is something that a request may meet.
type apiFault struct {
	name   string
	answer func(asked *http.Request, next http.RoundTripper) (*http.Response, error)
}

// meets reports whether a request can meet the fault: a read has nothing to be in conflict with.
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
func refusing(code int32, reason metav1.StatusReason) apiFault {
	return apiFault{name: fmt.Sprintf("a %d", code), answer: func(asked *http.Request, _ http.RoundTripper) (*http.Response, error) {
		return fixture.Refuse(asked, code, reason, "as the test wants it")
	}}
}

// refusingWhere has an API server refuse the requests that match.
func refusingWhere(match func(*http.Request) bool, code int32, reason metav1.StatusReason, message string) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return fixture.RoundTripper(func(request *http.Request) (*http.Response, error) {
			if match(request) {
				return fixture.Refuse(request, code, reason, message)
			}
			return next.RoundTrip(request)
		})
	}
}
