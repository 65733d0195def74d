package integration

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// overloaded is an API server that takes its time for each request but a watch, and may have none for each fifth one.
type overloaded struct {
	takes  time.Duration
	fifths bool // it refuses each fifth request
	asked  atomic.Int32
}

func (o *overloaded) wrap(next http.RoundTripper) http.RoundTripper {
	refuses := refusing(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)
	return fixture.RoundTripper(func(asked *http.Request) (*http.Response, error) {
		if requestOf(asked).verb == "watch" {
			return next.RoundTrip(asked)
		}
		if o.asked.Add(1)%5 == 0 && o.fifths {
			return refuses.answer(asked, next)
		}
		timer := time.NewTimer(o.takes)
		defer timer.Stop()
		select {
		case <-timer.C:
			return next.RoundTrip(asked)
		case <-asked.Context().Done():
			return nil, asked.Context().Err()
		}
	})
}

// mostAsked bounds what an agent asks for one transfer and its own start, Events and renewals of the Lease included, when each
// fifth request has to be repeated.
const mostAsked = 120

func TestAnOverloadedAPIServerOnlyDelaysTransfers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		takes  time.Duration
		fifths bool
	}{
		"takes half a second, and refuses each fifth request": {takes: 500 * time.Millisecond, fifths: true},
		"takes two seconds": {takes: 2 * time.Second},
	} {
		for _, kind := range testenv.Kinds() {
			t.Run(fmt.Sprintf("%s %s", kind, name), func(t *testing.T) {
				s := newEnv(t, 50*time.Millisecond)
				around := s.workload(kind)
				server := &overloaded{takes: test.takes, fifths: test.fifths}
				s.start(fixture.Through(around.watch), fixture.Through(server.wrap))
				created := around.create()
				ended := around.ends(created, testenv.Completed)
				require.Empty(t, ended.Annotations[api.AnnotationRestarts])
				require.Equal(t, 1, s.moversMade(created))
				require.Less(t, int(server.asked.Load()), mostAsked)
			})
		}
	}
}
