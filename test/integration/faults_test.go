package integration

import (
	"flag"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// wholeTable has every request meet every fault; without it each meets one of them.
var wholeTable = flag.Bool("faults", false, "try every fault with every request")

// request is what an agent asks of the API server, without the object.
type request struct{ verb, resource string }

// requestOf names a request by the verb that RBAC has for it.
func requestOf(r *http.Request) request {
	verb := map[string]string{
		http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[r.Method]
	resource, named := resourceOf(r.URL.Path)
	switch {
	case verb != "":
	case r.URL.Query().Get("watch") == "true":
		verb = "watch"
	case named:
		verb = "get"
	default:
		verb = "list"
	}
	return request{verb: verb, resource: resource}
}

func (r request) String() string { return r.verb + " " + r.resource }

// secretary notes what an agent asks.
type secretary struct {
	lock  sync.Mutex
	asked map[request]int
}

func (s *secretary) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(asked *http.Request) (*http.Response, error) {
		s.lock.Lock()
		s.asked[requestOf(asked)]++
		s.lock.Unlock()
		return next.RoundTrip(asked)
	})
}

// requests are all that there were, in an order that is always the same. Discovery is not about objects.
func (s *secretary) requests() []request {
	s.lock.Lock()
	defer s.lock.Unlock()
	all := slices.SortedFunc(maps.Keys(s.asked), func(a, b request) int { return strings.Compare(a.String(), b.String()) })
	return slices.DeleteFunc(all, func(r request) bool { return r.resource == "" })
}

func TestFaultsOfTheAPIServerChangeNothingInTheEnd(t *testing.T) {
	for _, kind := range swept(t) {
		told := story{kind: kind, outcome: completes}
		t.Run(told.String(), func(t *testing.T) {
			asked, end := everyRequest(t, told)
			t.Logf("%s: %d kinds of requests: %v", told, len(asked), asked)
			for i, what := range asked {
				faults := slices.DeleteFunc(apiFaults(), func(fault apiFault) bool { return !fault.meets(what) })
				for j, fault := range faults {
					if *wholeTable || i%len(faults) == j {
						t.Run(fmt.Sprintf("%s to %s", fault.name, what), func(t *testing.T) {
							require.Equal(t, end, spoiled(t, told, what, fault))
						})
					}
				}
			}
		})
	}
}

// everyRequest tells a story without a fault: what the agent asks, and how it ends.
func everyRequest(t *testing.T, told story) (asked []request, end string) {
	t.Helper()
	require.True(t, t.Run("without a fault", func(t *testing.T) {
		s, around := told.stage(t)
		notes := &secretary{asked: map[request]int{}}
		s.start(told.options, through(around.watch), through(notes.wrap))
		end = told.tell(s, around, around.create())
		asked = notes.requests()
	}))
	return asked, end
}

// spoiled tells a story in which one request goes wrong.
func spoiled(t *testing.T, told story, what request, fault apiFault) (end string) {
	t.Helper()
	t.Parallel()
	s, around := told.stage(t)
	s.retries = true // what it was not answered it asks again
	history, err := s.Record(t.Context())
	require.NoError(t, err)
	spoiler := &spoiler{what: what, fault: fault, struck: make(chan struct{})}
	s.start(told.options, through(around.watch), through(spoiler.wrap))
	name := around.create()
	end = told.tell(s, around, name)
	select {
	case <-spoiler.struck:
	case <-s.soon().Done():
		require.Failf(t, "nothing went wrong", "the agent did not %s", what)
	}
	require.Equal(t, 1, s.moversMade(name))
	requireOneEnd(t, history, name)
	return end
}

// spoiler lets the first of the requests of one kind go wrong.
type spoiler struct {
	what   request
	fault  apiFault
	once   sync.Once
	struck chan struct{} // closed when that has happened
}

func (s *spoiler) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(asked *http.Request) (response *http.Response, err error) {
		spoil := false
		if requestOf(asked) == s.what {
			s.once.Do(func() { spoil = true })
		}
		if !spoil {
			return next.RoundTrip(asked)
		}
		defer close(s.struck)
		return s.fault.answer(asked, next)
	})
}
