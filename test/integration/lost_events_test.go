package integration

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/reconcile/seeds"
	"github.com/lateen-project/lateen/test/fixture"
)

// eventDropper makes the first watch of each resource lose events: after some events it delivers nothing for a while,
// and then the watch ends with 410 Gone, so that the agent sees what has become of everything and not how.
type eventDropper struct {
	lets  int           // events that get through before
	blind time.Duration // how long nothing is heard

	lock sync.Mutex
	seen map[string]bool // resources that have been watched
	lost map[string]bool // resources whose watch went blind
}

// expired is the event by which the API server ends a watch of what it has forgotten.
const expired = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",` +
	`"message":"too old resource version","reason":"Expired","code":410}}` + "\n"

func (b *eventDropper) wrap(next http.RoundTripper) http.RoundTripper {
	return fixture.RoundTripper(func(asked *http.Request) (*http.Response, error) {
		what := requestOf(asked)
		if what.verb != "watch" || !b.first(what.resource) {
			return next.RoundTrip(asked)
		}
		asked = asked.Clone(asked.Context())
		// One line is one event in JSON, whatever the client prefers.
		asked.Header.Set("Accept", strings.ReplaceAll(asked.Header.Get("Accept"), "application/vnd.kubernetes.protobuf", "application/json"))
		asked.Header.Set("Accept-Encoding", "identity")
		response, err := next.RoundTrip(asked)
		if err == nil && response.StatusCode == http.StatusOK {
			response.Body = b.spoil(what.resource, response.Body)
		}
		return response, err
	})
}

// first reports whether this is the first watch of a resource.
func (b *eventDropper) first(resource string) bool {
	b.lock.Lock()
	defer b.lock.Unlock()
	defer func() { b.seen[resource] = true }()
	return !b.seen[resource]
}

func (b *eventDropper) went(resource string) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.lost[resource] = true
}

// blinded reports whether events of a resource were lost.
func (b *eventDropper) blinded(resource string) bool {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.lost[resource]
}

// spoil is a watch that lets some events through.
func (b *eventDropper) spoil(resource string, body io.ReadCloser) io.ReadCloser {
	reader, writer := io.Pipe()
	go func() {
		defer body.Close()
		lines := bufio.NewReader(body)
		for range b.lets {
			line, err := lines.ReadBytes('\n')
			if err == nil {
				_, err = writer.Write(line)
			}
			if err != nil {
				_ = writer.CloseWithError(err)
				return
			}
		}
		b.went(resource)
		timer := time.NewTimer(b.blind)
		defer timer.Stop()
		<-timer.C
		_, _ = io.WriteString(writer, expired) // unless the client has gone
		_ = writer.Close()
	}()
	return reader
}

func TestEventsThatAreLostOrMergedChangeNothingInTheEnd(t *testing.T) {
	t.Parallel()
	const tales = 2 // in a sample
	seeds.Each(t, 1, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		for _, reported := range sample(random, scenarios(t, completes, canceled), tales) {
			t.Run(reported.String(), func(t *testing.T) {
				t.Parallel()
				_, end := everyCall(t, reported, 1)
				for lets := 1; lets <= 4; lets++ {
					t.Run(fmt.Sprintf("after %d of each resource", lets), func(t *testing.T) {
						t.Parallel()
						require.Equal(t, end, withLostEvents(t, reported, lets))
					})
				}
			})
		}
	})
}

// withLostEvents runs a scenario in which the agent does not receive every event.
func withLostEvents(t *testing.T, reported scenario, lets int) (end string) {
	t.Helper()
	s, around := reported.setUp(t)
	history := s.record()
	b := &eventDropper{lets: lets, blind: 300 * time.Millisecond, seen: map[string]bool{}, lost: map[string]bool{}}
	s.start(fixture.Through(around.watch), fixture.Through(b.wrap))
	name := around.create()
	end = reported.run(s, around, name)
	require.True(t, b.blinded(reported.kind.Resource().Resource), "nothing was lost of %s", reported.kind)
	require.Equal(t, 1, s.moversMade(name))
	requireOneEnd(t, history, name)
	return end
}
