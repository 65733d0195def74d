package integration

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"

	"github.com/lateen-project/lateen/test/fixture"
)

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
