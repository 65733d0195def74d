package apiserver

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/lateen-project/lateen/test/cluster"
)

// Record returns what the audit log of a real API server has of a request, but for its user and its answer.
func (r Request) Record() cluster.Record {
	version, parts := split(r.Path)
	record := cluster.Record{Verb: strings.ToLower(r.Method), APIGroup: version.Group}
	if len(parts) == 0 {
		return record
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		record.Namespace, parts = parts[1], parts[2:]
	}
	parts = append(parts, "", "") // a name and a subresource, if there are none
	record.Resource, record.Name, record.Subresource = parts[0], parts[1], parts[2]
	record.Verb = verb(r, record.Name != "")
	if name, only := strings.CutPrefix(r.Query.Get("fieldSelector"), "metadata.name="); only {
		record.Name = name
	}
	if record.APIGroup == "velero.io" {
		record.Body = slices.Clone(r.Body)
	}
	if record.Verb == "delete" && record.Resource == "pods" {
		options, _ := DeleteOptions(r)         // the answer is the error
		record.Body, _ = json.Marshal(options) //nolint:errchkjson // plain values
	}
	return record
}

// verb returns the API verb of a request.
func verb(request Request, named bool) string {
	watches := slices.Contains([]string{"1", "true"}, request.Query.Get("watch"))
	switch request.Method {
	case http.MethodGet:
		switch {
		case watches:
			return "watch"
		case named:
			return "get"
		}
		return "list"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if !named {
			return "deletecollection"
		}
	}
	return strings.ToLower(request.Method)
}
