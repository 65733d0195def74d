package integration

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/reconcile/seeds"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// request is what an agent asks of the API server, without the object.
type request struct{ verb, resource string }

// requestOf names a request by the verb that RBAC has for it.
func requestOf(r *http.Request) request {
	verb := map[string]string{
		http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[r.Method]
	resource, named := fixture.ResourceOf(r.URL.Path)
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

// calls are as many as an agent has made of one request; of what goes by the clock only the first.
func (r request) calls(count int) (all []call) {
	if r.verb == "watch" || r.resource == "leases" {
		count = 1
	}
	for ordinal := range count {
		all = append(all, call{request: r, ordinal: ordinal + 1})
	}
	return all
}

// call is one of several requests that are alike.
type call struct {
	request
	ordinal int // from 1 on
}

func (c call) String() string { return fmt.Sprintf("%s number %d", c.request, c.ordinal) }

// sure reports whether an agent makes the call whoever is faster. How often it reads an object depends on which of its caches
// is faster.
func (c call) sure() bool { return c.verb != "get" && c.verb != "list" }

// requestCounter notes what an agent asks.
type requestCounter struct {
	lock  sync.Mutex
	asked map[request]int
}

func (s *requestCounter) wrap(next http.RoundTripper) http.RoundTripper {
	return fixture.RoundTripper(func(asked *http.Request) (*http.Response, error) {
		s.lock.Lock()
		s.asked[requestOf(asked)]++
		s.lock.Unlock()
		return next.RoundTrip(asked)
	})
}

// least keeps of each request as many as another run has made, if those are fewer.
func (s *requestCounter) least(other *requestCounter) {
	for what, count := range s.asked {
		s.asked[what] = min(count, other.asked[what])
	}
}

// calls are all that there were, in an order that is always the same. Discovery is not about objects.
func (s *requestCounter) calls() (all []call) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, what := range slices.SortedFunc(maps.Keys(s.asked), func(a, b request) int { return strings.Compare(a.String(), b.String()) }) {
		if what.resource != "" {
			all = append(all, what.calls(s.asked[what])...)
		}
	}
	return all
}

// injection is a fault that a call meets.
type injection struct {
	call
	apiFault
}

func (m injection) String() string { return fmt.Sprintf("%s to %s", m.name, m.call) }

// injections are all that can happen to calls.
func injections(calls []call) (all []injection) {
	for _, what := range calls {
		for _, fault := range apiFaults() {
			if fault.meets(what.request) {
				all = append(all, injection{call: what, apiFault: fault})
			}
		}
	}
	return all
}

func TestFaultsOfTheAPIServerChangeNothingInTheEnd(t *testing.T) {
	t.Parallel()
	const ofEach = 3 // in a sample
	seeds.Each(t, 1, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		for _, kind := range swept(t) {
			reported := scenario{kind: kind, outcome: completes}
			t.Run(reported.String(), func(t *testing.T) {
				t.Parallel()
				const runs = 3
				calls, end := everyCall(t, reported, runs)
				all := injections(calls)
				t.Logf("%s: %d calls, to which %d things can happen: %v", reported, len(calls), len(all), calls)
				for _, one := range sample(random, all, ofEach) {
					t.Run(one.String(), func(t *testing.T) {
						t.Parallel()
						strikes(t, one, func(spoiler *injector) { require.Equal(t, end, spoiled(t, reported, spoiler)) })
					})
				}
			})
		}
	})
}

// everyCall runs a scenario several times without a fault. It returns the requests common to all runs, and the end.
func everyCall(t *testing.T, reported scenario, runs int) (calls []call, end string) {
	t.Helper()
	return measured(t, runs, func(t *testing.T, notes *requestCounter) string {
		t.Helper()
		s, around := reported.setUp(t)
		s.start(fixture.Through(around.watch), fixture.Through(notes.wrap))
		return reported.run(s, around, around.create())
	})
}

// measured are the calls that each of some runs without a fault has made, and the end to which all of them come.
func measured[End any](t *testing.T, runs int, run func(t *testing.T, notes *requestCounter) End) (calls []call, end End) {
	t.Helper()
	notes, ends := make([]*requestCounter, runs), make([]End, runs)
	require.True(t, t.Run("without a fault", func(t *testing.T) {
		for i := range runs {
			notes[i] = &requestCounter{asked: map[request]int{}}
			t.Run(fmt.Sprint("run ", i+1), func(t *testing.T) {
				t.Parallel()
				ends[i] = run(t, notes[i])
			})
		}
	}))
	for i := range runs {
		require.Equal(t, ends[0], ends[i])
		notes[0].least(notes[i])
	}
	return notes[0].calls(), ends[0]
}

// strikes runs a scenario in which one request fails. It repeats the run if that request is a read that was not sent.
func strikes(t *testing.T, what injection, run func(spoiler *injector)) {
	t.Helper()
	const tries = 8
	for range tries {
		spoiler := newInjector(what)
		run(spoiler)
		if spoiler.hasStruck(t) {
			return
		}
		t.Logf("this time there was no %s", what.call)
	}
	require.Failf(t, "nothing went wrong", "there was no %s", what.call)
}

// spoiled runs a scenario in which one request fails, if it is sent.
func spoiled(t *testing.T, reported scenario, spoiler *injector) (end string) {
	t.Helper()
	s, around := reported.setUp(t)
	history := s.record()
	s.start(fixture.Through(around.watch), fixture.Through(spoiler.wrap))
	name := around.create()
	end = reported.run(s, around, name)
	require.Equal(t, 1, s.moversMade(name))
	requireOneEnd(t, history, name)
	return end
}

// injector lets one of the requests of one kind go wrong.
type injector struct {
	injection
	seen   atomic.Int32
	struck chan struct{} // closed when that has happened
}

func newInjector(what injection) *injector {
	return &injector{injection: what, struck: make(chan struct{})}
}

func (s *injector) wrap(next http.RoundTripper) http.RoundTripper {
	return fixture.RoundTripper(func(asked *http.Request) (response *http.Response, err error) {
		if requestOf(asked) != s.request || int(s.seen.Add(1)) != s.ordinal {
			return next.RoundTrip(asked)
		}
		defer close(s.struck)
		return s.answer(asked, next)
	})
}

// hasStruck reports whether the fault has fired. What an agent writes at its own pace, such as an Event, may come after the
// end of a scenario.
func (s *injector) hasStruck(t *testing.T) bool {
	t.Helper()
	select {
	case <-s.struck:
		return true
	default:
	}
	if !s.sure() {
		return false
	}
	select {
	case <-s.struck:
	case <-time.After(testenv.Patience):
		require.Failf(t, "nothing went wrong", "there was no %s", s.call)
	}
	return true
}

// requireOneEnd wants nothing to follow a terminal phase but the deletion.
func requireOneEnd(t *testing.T, history *testenv.Recorder, name string) {
	t.Helper()
	phases := history.Phases(name)
	for i, phase := range phases {
		if phase.Ended() {
			for _, later := range phases[i+1:] {
				require.Equal(t, testenv.Gone, later, "%v", phases)
			}
		}
	}
}
