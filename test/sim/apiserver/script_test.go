package apiserver_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
)

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
