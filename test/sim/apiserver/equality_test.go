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
			require.Equal(t, http.StatusCreated, s.do(request{method: http.MethodPost, path: "/api/v1/namespaces", body: made}).code)
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
		require.Equal(t, sides[0].events(t, resource, simulated.server.Changes(resource.plural)), sides[1].events(t, resource, -1), "events of\n%s", strings.Join(played, "\n"))
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

// target is a resource that scripts use. No controller of the control plane writes to its objects.
type target struct {
	group, plural string
	object        string // without metadata
	change        string // a merge patch that changes its content
}

func targets() []target {
	const app = `"spec":{"schedulerName":"nobody","containers":[{"name":"app","image":"app"}]}`
	return []target{
		{"api/v1", "secrets", `"apiVersion":"v1","kind":"Secret","data":{"a":"MQ=="}`, `"data":{"b":"MQ=="}`},
		{"api/v1", "pods", `"apiVersion":"v1","kind":"Pod",` + app, `"metadata":{"annotations":{"changed":"1"}}`},
		{"apis/coordination.k8s.io/v1", "leases", `"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"holderIdentity":"a"}`, `"spec":{"holderIdentity":"b"}`},
		{"apis/velero.io/v1", "podvolumebackups", `"apiVersion":"velero.io/v1","kind":"PodVolumeBackup","spec":{"node":"n","pod":{},"volume":"v","backupStorageLocation":"l","repoIdentifier":"","uploaderType":"kopia"}`, `"status":{"phase":"InProgress"}`},
		{"apis/velero.io/v2alpha1", "datauploads", `"apiVersion":"velero.io/v2alpha1","kind":"DataUpload","spec":{"snapshotType":"CSI","sourcePVC":"p","sourceNamespace":"n","backupStorageLocation":"l","operationTimeout":"1m"}`, `"spec":{"cancel":true}`},
	}
}

func (t target) path(namespace string) string {
	return "/" + t.group + "/namespaces/" + namespace + "/" + t.plural
}

type request struct{ method, path, kind, body string }

func (r request) contentType() string {
	if r.kind != "" {
		return "application/" + r.kind + "-patch+json"
	}
	return "application/json"
}

// step is one request of a script. $uid and $version in it are those of the last answer about the object.
type step struct {
	request
	name       string
	stale, dry bool // stale: $version is that of the first answer
}

func (s step) String() string {
	return fmt.Sprintf("%s %s %s %s stale=%t", s.method, s.path, s.kind, s.body, s.stale)
}

// draw makes a random step.
func draw(random *rand.Rand, of target) step {
	s := step{name: string(rune('a' + random.IntN(2))), stale: random.IntN(4) == 0}
	all := of.path("$namespace")
	one := all + "/" + s.name
	object := func(meta string) string { return fmt.Sprintf(`{%s,"metadata":{%s}}`, of.object, meta) }
	set := func(method, path, kind, body string) { s.request = request{method, path, kind, body} }
	merge := func(body string) { set(http.MethodPatch, one, "merge", body) }
	options := func(body string) {
		set(http.MethodDelete, one, "", `{"kind":"DeleteOptions","apiVersion":"v1"`+body+`}`)
	}
	draws := []func(){
		func() {
			set(http.MethodPost, all, "", object(fmt.Sprintf(`"name":%q,"labels":{"l":%q}`, s.name, s.name)))
		},
		func() {
			set(http.MethodPost, all, "", object(fmt.Sprintf(`"name":%q,"finalizers":["example.com/a"]`, s.name)))
		},
		func() { set(http.MethodPost, all, "", object(fmt.Sprintf(`"name":%q,"resourceVersion":"5"`, s.name))) },
		func() { set(http.MethodPost, all, "", object(`"generateName":"g-"`)); s.name = "g" },
		func() { set(http.MethodPost, all, "", object(``)) },
		func() {
			s.dry = true
			set(http.MethodPost, all+"?dryRun=All", "", object(fmt.Sprintf(`"name":%q`, s.name)))
		},
		func() {
			set(http.MethodPost, of.path("missing"), "", object(fmt.Sprintf(`"name":%q`, s.name)))
		},
		func() { set(http.MethodGet, one, "", "") },
		func() {
			set(http.MethodPut, one, "", object(fmt.Sprintf(`"name":%q,"resourceVersion":"$version","labels":{"put":"1"}`, s.name)))
		},
		func() {
			set(http.MethodPut, one, "", object(fmt.Sprintf(`"name":%q,"resourceVersion":"$version","uid":"99999999-2222-4333-8444-555555555555"`, s.name)))
		},
		func() { merge(`{` + of.change + `}`) },
		func() { merge(`{"metadata":{"labels":{"m":"1","l":null}}}`) },
		func() { merge(`{"metadata":{"resourceVersion":"$version","annotations":{"x":"y"}}}`) },
		func() { merge(`{"metadata":{"uid":"$uid","labels":{"u":"1"}}}`) },
		func() { merge(`{"metadata":{"uid":"99999999-2222-4333-8444-555555555555"}}`) },
		func() { merge(`{"metadata":{"finalizers":["example.com/a"]}}`) },
		func() { merge(`{"metadata":{"finalizers":null}}`) },
		func() { merge(`{"metadata":{"creationTimestamp":null,"generateName":"no"}}`) },
		func() {
			set(http.MethodPatch, one, "json", `[{"op":"test","path":"/metadata/name","value":"a"},{"op":"add","path":"/metadata/labels","value":{"j":"1"}}]`)
		},
		func() { set(http.MethodPatch, one, "json", `[{"op":"remove","path":"/metadata/labels/absent"}]`) },
		func() {
			s.dry = true
			set(http.MethodPatch, one+"?dryRun=All", "merge", `{"metadata":{"labels":{"d":"1"}}}`)
		},
		func() { set(http.MethodPatch, one, "strategic-merge", `{"metadata":{"labels":{"s":"1"}}}`) },
		func() { options(``) },
		func() { options(`,"preconditions":{"uid":"$uid"}`) },
		func() { options(`,"preconditions":{"uid":"99999999-2222-4333-8444-555555555555"}`) },
		func() { options(`,"preconditions":{"resourceVersion":"$version"}`) },
		func() { options(`,"gracePeriodSeconds":0`) },
		func() { options(`,"gracePeriodSeconds":7`) },
		func() { options(`,"dryRun":["All"]`) },
		func() { set(http.MethodGet, all+"?labelSelector="+url.QueryEscape("l in (a,b),!m"), "", "") },
		func() { set(http.MethodGet, all+"?fieldSelector="+url.QueryEscape("metadata.name="+s.name), "", "") },
		func() { set(http.MethodGet, all+"?fieldSelector=spec.unknown%3Dx", "", "") },
		func() { set(http.MethodGet, "/"+of.group+"/namespaces/$namespace/nothings", "", "") },
		func() { set(http.MethodPut, one+"/status", "", object(fmt.Sprintf(`"name":%q`, s.name))) },
	}
	if of.plural == "pods" {
		pod := func(extra string) string {
			return strings.Replace(object(fmt.Sprintf(`"name":%q`, s.name)), `"spec":{`, `"spec":{`+extra+`,`, 1)
		}
		draws = append(draws,
			func() { set(http.MethodPost, all, "", pod(`"priorityClassName":"missing"`)) },
			func() { set(http.MethodPost, all, "", pod(`"priorityClassName":"system-node-critical"`)) },
			func() { set(http.MethodPost, all, "", pod(`"nodeName":"nowhere"`)) },
			func() {
				set(http.MethodPatch, one+"/status", "merge", `{"status":{"phase":"Running"},"metadata":{"labels":{"status":"1"}}}`)
			},
			func() { set(http.MethodPatch, one+"/status", "strategic-merge", `{"status":{"phase":"Succeeded"}}`) },
			func() { set(http.MethodGet, all+"?fieldSelector=spec.nodeName%3Dnowhere", "", "") },
		)
	}
	for s.method == "" || of.plural == "pods" && s.method == http.MethodPut { // the spec of pods is immutable there
		draws[random.IntN(len(draws))]()
	}
	return s
}

// shape returns what has to be equal of an object, list or Status: no names that the server chose, no times.
func shape(object map[string]any) string {
	if object["kind"] == "Status" {
		details, _ := object["details"].(map[string]any)
		return fmt.Sprintf("Status %v %v %v", object["status"], object["reason"], details["name"])
	}
	if items, ok := object["items"].([]any); ok {
		var all []string
		for _, item := range items {
			one, _ := item.(map[string]any)
			one["kind"] = strings.TrimSuffix(fmt.Sprint(object["kind"]), "List") // not set in lists of built-in resources
			all = append(all, shape(one))
		}
		return fmt.Sprintf("%v [%s]", object["kind"], strings.Join(all, ", "))
	}
	meta, _ := object["metadata"].(map[string]any)
	keep := map[string]any{"kind": object["kind"], "data": object["data"], "deleting": meta["deletionTimestamp"] != nil}
	for _, key := range []string{"labels", "annotations", "finalizers", "deletionGracePeriodSeconds", "generateName", "ownerReferences"} {
		keep[key] = meta[key]
	}
	if meta["generateName"] == nil {
		keep["name"] = meta["name"]
	}
	spec, _ := object["spec"].(map[string]any)
	status, _ := object["status"].(map[string]any)
	if object["kind"] == "Pod" {
		keep["node"], keep["phase"], keep["priority"], keep["grace"] = spec["nodeName"], status["phase"], spec["priority"], spec["terminationGracePeriodSeconds"]
	} else {
		keep["spec"], keep["status"] = spec, status
	}
	text, _ := json.Marshal(keep)
	return string(text)
}
