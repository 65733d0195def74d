package apiserver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/seeds"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// plane is the real control plane; TestMain sets it.
var plane *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, &plane)) }

// scripts is how many scripts are played. Each has a seed of its own.
const scripts = 200

func TestTheServerAnswersLikeTheRealOne(t *testing.T) {
	actual := newRealSide(t)
	seeds.Each(t, scripts, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		namespace := fmt.Sprintf("equal-%x", random.Uint64())
		simulated := newSimulatedSide()
		sides := []*side{actual.in(namespace), simulated.in(namespace)}
		made := fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, namespace)
		for _, s := range sides {
			require.Equal(t, http.StatusCreated, s.send(request{method: http.MethodPost, path: "/api/v1/namespaces", body: made}).code)
		}
		resource := targets()[random.IntN(len(targets()))]
		for _, s := range sides {
			s.mark(t, resource)
		}
		var played []string
		for range 3 + random.IntN(10) {
			step := draw(random, resource)
			played = append(played, step.String())
			answers := []string{sides[0].play(step), sides[1].play(step)}
			require.Equal(t, answers[0], answers[1], "the real answer is the first; script of %s:\n%s", resource.plural, strings.Join(played, "\n"))
		}
		require.Equal(t, sides[0].events(t, resource, simulated.count(resource)), sides[1].events(t, resource, -1), "events of\n%s", strings.Join(played, "\n"))
	})
}

// side is a server with what a script has seen of it.
type side struct {
	do        func(request) response
	watch     func(path string, count int) ([]byte, error)
	namespace string
	first     map[string]seen // by name
	last      map[string]seen
	begin     string // the version of the list before the script
}

type seen struct{ uid, version string }

type response struct {
	code int
	body []byte
}

func (s *side) in(namespace string) *side {
	inside := *s
	inside.namespace, inside.first, inside.last = namespace, map[string]seen{}, map[string]seen{}
	return &inside
}

func newRealSide(t *testing.T) *side {
	t.Helper()
	client, err := rest.HTTPClientFor(plane.Admin())
	require.NoError(t, err)
	send := func(r request) (*http.Response, error) {
		sent, err := http.NewRequestWithContext(context.Background(), r.method, plane.Admin().Host+r.path, strings.NewReader(r.body))
		if err != nil {
			return nil, err
		}
		sent.Header.Set("Content-Type", r.contentType())
		return client.Do(sent)
	}
	return &side{
		do: func(r request) response {
			got, err := send(r)
			require.NoError(t, err)
			defer got.Body.Close()
			body, err := io.ReadAll(got.Body)
			require.NoError(t, err)
			return response{got.StatusCode, body}
		},
		watch: func(path string, count int) ([]byte, error) {
			got, err := send(request{method: http.MethodGet, path: path})
			if err != nil {
				return nil, err
			}
			defer got.Body.Close()
			return lines(got.Body, count)
		},
	}
}

// lines reads that many lines.
func lines(from io.Reader, count int) (all []byte, err error) {
	reader := bufio.NewReader(from)
	for range count {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return all, err
		}
		all = append(all, line...)
	}
	return all, nil
}

// simulatedSide is the server in memory.
type simulatedSide struct {
	*side
	server *apiserver.Server
}

func newSimulatedSide() *simulatedSide {
	number := 0
	server := apiserver.New(time.Now, func() string { number++; return fmt.Sprintf("%05d", number) }, func() types.UID {
		number++
		return types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", number))
	})
	handle := func(r request) apiserver.Reply {
		at, err := url.Parse(r.path)
		if err != nil {
			panic(err)
		}
		return server.Handle(apiserver.Request{
			Method: r.method, Path: at.Path, Query: at.Query(), Header: http.Header{"Content-Type": {r.contentType()}}, Body: []byte(r.body),
		})
	}
	return &simulatedSide{server: server, side: &side{
		do: func(r request) response {
			reply := handle(r)
			return response{reply.Code, reply.Body}
		},
		watch: func(path string, _ int) ([]byte, error) {
			reply := handle(request{method: http.MethodGet, path: path})
			count := 0
			made, err := http.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
			if err != nil {
				return nil, err
			}
			body := reply.Response(made).Body
			for ; reply.Watch.Next() != ""; count++ {
				reply.Watch.Deliver()
			}
			return lines(body, count)
		},
	}}
}

// count returns how many events a watch has to get since the begin of the script.
func (s *simulatedSide) count(of target) int { return s.server.Changes(of.plural) }

func (s *side) send(r request) response { return s.do(r) }

// mark notes the version at which the script begins.
func (s *side) mark(t *testing.T, of target) {
	t.Helper()
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	require.NoError(t, json.Unmarshal(s.do(request{method: http.MethodGet, path: of.path(s.namespace)}).body, &list))
	s.begin = list.Metadata.ResourceVersion
}

// play plays a step and returns what has to be equal.
func (s *side) play(step step) string {
	known := s.last[step.name]
	if step.stale {
		known.version = s.first[step.name].version
	}
	if known.uid == "" {
		known = seen{"11111111-2222-4333-8444-555555555555", "1"}
	}
	fill := strings.NewReplacer("$namespace", s.namespace, "$uid", known.uid, "$version", known.version)
	r := step.request
	r.path, r.body = fill.Replace(r.path), fill.Replace(r.body)
	got := s.do(r)
	object := map[string]any{}
	if err := json.Unmarshal(got.body, &object); err != nil {
		return fmt.Sprintf("%d %s", got.code, bytes.TrimSpace(got.body))
	}
	if meta, ok := object["metadata"].(map[string]any); ok && got.code < 300 && meta["uid"] != nil && !step.dry {
		now := seen{fmt.Sprint(meta["uid"]), fmt.Sprint(meta["resourceVersion"])}
		if s.first[step.name].uid != now.uid {
			s.first[step.name] = now
		}
		changed := s.last[step.name] != now
		s.last[step.name] = now
		return fmt.Sprintf("%d changed=%t %s", got.code, changed, shape(object))
	}
	return fmt.Sprintf("%d %s", got.code, shape(object))
}

// events returns the events since the begin of the script.
func (s *side) events(t *testing.T, of target, count int) (all []string) {
	t.Helper()
	text, err := s.watch(of.path(s.namespace)+"?watch=true&timeoutSeconds=30&resourceVersion="+s.begin, count)
	require.NoError(t, err)
	decoder := json.NewDecoder(bytes.NewReader(text))
	for decoder.More() {
		var event struct {
			Type   string
			Object map[string]any
		}
		require.NoError(t, decoder.Decode(&event))
		all = append(all, event.Type+" "+shape(event.Object))
	}
	return all
}
