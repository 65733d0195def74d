package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
)

// Request is what a client sends.
type Request struct {
	Client string // for watches
	Method string
	Path   string
	Query  url.Values
	Header http.Header
	Body   []byte
}

// Reply is the answer: a body, or a watch.
type Reply struct {
	Code  int
	Body  []byte
	Watch *Watch
}

// target is what a path names.
type target struct {
	*table

	namespace, name, sub string
}

// errNoPage is the answer to a path of which the API server knows nothing.
var errNoPage = errors.New("404 page not found")

// Handle answers a request.
func (s *Server) Handle(request Request) Reply {
	version, rest := split(request.Path)
	if len(rest) == 0 {
		if body := s.discover(version); body != nil {
			return Reply{Code: http.StatusOK, Body: body}
		}
		return failure(errNoPage)
	}
	if rest[0] == "selfsubjectaccessreviews" {
		return Reply{Code: http.StatusCreated, Body: []byte(`{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{},"status":{"allowed":true}}`)}
	}
	at, err := s.find(version, rest)
	if err != nil {
		return failure(err)
	}
	reply, err := s.serve(at, request)
	if err != nil {
		return failure(err)
	}
	return reply
}

// split returns the group version of a path and the segments after it.
func split(path string) (schema.GroupVersion, []string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) >= 2 && parts[0] == "api":
		return schema.GroupVersion{Version: parts[1]}, parts[2:]
	case len(parts) >= 3 && parts[0] == "apis":
		return schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	default:
		return schema.GroupVersion{}, nil
	}
}

func (s *Server) find(version schema.GroupVersion, rest []string) (target, error) {
	at := target{}
	if rest[0] == "namespaces" && len(rest) > 2 && rest[2] != "status" {
		at.namespace, rest = rest[1], rest[2:]
	}
	at.table = s.tables[version.WithResource(rest[0])]
	switch known := scheme.Scheme.IsVersionRegistered(version); {
	case at.table == nil && known:
		return at, noResource(rest[0])
	case at.table == nil:
		return at, errNoPage
	}
	if len(rest) > 1 {
		at.name = rest[1]
	}
	if len(rest) > 2 {
		at.sub = rest[2]
	}
	if at.sub == "log" && at.Resource.Resource == "pods" && at.objects[key(at.namespace, at.name)] != nil {
		return at, nil
	}
	switch {
	case at.sub == "" || at.sub == "status" && at.Status:
	case at.builtIn():
		return at, noResource(rest[0])
	default:
		return at, apierrors.NewNotFound(at.GroupResource(), at.name)
	}
	return at, nil
}

func (s *Server) serve(at target, request Request) (Reply, error) {
	plural := at.Resource.Resource
	dry := request.Query.Get("dryRun") == metav1.DryRunAll
	switch {
	case at.sub == "log": // what kubelets have of a pod is empty
		return Reply{Code: http.StatusOK}, nil
	case request.Method == http.MethodGet && at.name == "":
		return s.list(at, request)
	case request.Method == http.MethodGet:
		found := at.objects[key(at.namespace, at.name)]
		if found == nil {
			return Reply{}, apierrors.NewNotFound(at.GroupResource(), at.name)
		}
		return answer(http.StatusOK, found, partial(request)), nil
	case request.Method == http.MethodPost:
		content, err := at.decode(request)
		if err != nil {
			return Reply{}, err
		}
		created, err := s.Create(plural, at.namespace, content, dry)
		return answer(http.StatusCreated, created, false), err
	case request.Method == http.MethodPut:
		content, err := at.decode(request)
		if err != nil {
			return Reply{}, err
		}
		return s.put(at, content, dry)
	case request.Method == http.MethodPatch:
		if err := at.patchable(request); err != nil {
			return Reply{}, err
		}
		patched, err := s.Update(plural, at.namespace, at.name, at.sub, dry, at.patch(request))
		return answer(http.StatusOK, patched, partial(request)), err
	case request.Method == http.MethodDelete && at.name != "":
		options, err := DeleteOptions(request)
		if err != nil {
			return Reply{}, err
		}
		if dry {
			options.DryRun = []string{metav1.DryRunAll}
		}
		deleted, err := s.Delete(plural, at.namespace, at.name, options)
		if err == nil && deleted.GetDeletionTimestamp() == nil {
			return at.gone(deleted), nil
		}
		return answer(http.StatusOK, deleted, partial(request)), err
	default:
		return Reply{}, apierrors.NewMethodNotSupported(at.GroupResource(), request.Method)
	}
}

// noResource is the answer for a resource or subresource that Kubernetes does not have.
func noResource(plural string) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{Resource: plural}, "", "", 0, true)
}

// put replaces an object. A Lease that does not exist is created (its strategy in Kubernetes' pkg/registry).
func (s *Server) put(at target, content map[string]any, dry bool) (Reply, error) {
	plural := at.Resource.Resource
	before := at.objects[key(at.namespace, at.name)]
	uid, given, _ := unstructured.NestedString(content, "metadata", "uid")
	switch {
	case before == nil && plural != "leases":
		return Reply{}, apierrors.NewNotFound(at.GroupResource(), at.name)
	case given && (before == nil || string(before.GetUID()) != uid):
		return Reply{}, at.conflict(at.name, "Precondition failed: UID in precondition: "+uid)
	case before == nil:
		unstructured.RemoveNestedField(content, "metadata", "resourceVersion")
		created, err := s.Create(plural, at.namespace, content, dry)
		return answer(http.StatusCreated, created, false), err
	}
	updated, err := s.Update(plural, at.namespace, at.name, at.sub, dry, func(map[string]any) (map[string]any, error) { return content, nil })
	return answer(http.StatusOK, updated, false), err
}

// gone is the answer to the deletion of an object that no longer exists.
func (t *table) gone(object *Object) Reply {
	body, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: object.GetName(), Group: t.Group, Kind: t.Resource.Resource, UID: object.GetUID()},
	})
	if err != nil {
		return failure(err)
	}
	return Reply{Code: http.StatusOK, Body: body}
}

func (s *Server) list(at target, request Request) (Reply, error) {
	query := request.Query
	only, err := at.filter(at.namespace, query.Get("labelSelector"), query.Get("fieldSelector"), partial(request))
	if err != nil {
		return Reply{}, err
	}
	if query.Get("watch") == "true" || query.Get("watch") == "1" {
		return s.watch(at, request, only)
	}
	kind, version := at.Kind+"List", at.GroupVersion().String()
	if only.partial {
		kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	objects, revision := at.sorted(), s.revision
	if query.Get("resourceVersion") == "0" && s.Lag > 0 && len(at.history) > 0 {
		revision = max(at.history[0].revision, s.revision-s.Lag)
		objects = at.at(revision)
	}
	items := make([]json.RawMessage, 0, len(objects))
	for _, object := range objects {
		if only.matches(object) {
			items = append(items, only.encoded(object))
		}
	}
	body, err := json.Marshal(map[string]any{
		"kind": kind, "apiVersion": version, "items": items, "metadata": map[string]any{"resourceVersion": fmt.Sprint(revision)},
	})
	return Reply{Code: http.StatusOK, Body: body}, err
}

func (s *Server) watch(at target, request Request, only filter) (Reply, error) {
	query := request.Query
	from := int64(0)
	if version := query.Get("resourceVersion"); version != "" && version != "0" {
		var err error
		if from, err = strconv.ParseInt(version, 10, 64); err != nil {
			return Reply{}, apierrors.NewBadRequest("invalid resource version " + version)
		}
	}
	initial := query.Get("sendInitialEvents") == "true"
	if initial && !s.Streams {
		return Reply{}, apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", field.ErrorList{
			field.Forbidden(field.NewPath("sendInitialEvents"), "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"),
		})
	}
	name := strings.TrimRight(strings.Join([]string{at.Resource.Resource, at.namespace, query.Get("labelSelector"), query.Get("fieldSelector")}, " "), " ")
	w := s.open(at.table, request.Client, name, only, from, initial)
	w.protobuf = at.builtIn() && !only.partial && strings.Contains(request.Header.Get("Accept"), runtime.ContentTypeProtobuf)
	return Reply{Code: http.StatusOK, Watch: w}, nil
}

func partial(request Request) bool {
	return strings.Contains(request.Header.Get("Accept"), "as=PartialObjectMetadata")
}

func answer(code int, object *Object, partial bool) Reply {
	if object == nil {
		return Reply{}
	}
	return Reply{Code: code, Body: filter{partial: partial}.encoded(object)}
}

// Failure returns the answer with an error.
func Failure(err error) Reply { return failure(err) }

func failure(err error) Reply {
	if errors.Is(err, errNoPage) {
		return Reply{Code: http.StatusNotFound, Body: []byte(err.Error() + "\n")}
	}
	status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		status = known.Status()
	}
	status.Kind, status.APIVersion = "Status", "v1"
	body, _ := json.Marshal(status) //nolint:errchkjson // plain strings
	return Reply{Code: int(status.Code), Body: body}
}

// filter selects objects, and says whether only their metadata is wanted.
type filter struct {
	namespace string // empty: all
	labels    labels.Selector
	fields    fields.Selector
	partial   bool
}

func (t *table) filter(namespace, label, field string, partial bool) (only filter, err error) {
	only = filter{namespace: namespace, partial: partial}
	if only.labels, err = labels.Parse(label); err != nil {
		return only, apierrors.NewBadRequest(err.Error())
	}
	if only.fields, err = fields.ParseSelector(field); err != nil {
		return only, apierrors.NewBadRequest(err.Error())
	}
	for _, requirement := range only.fields.Requirements() {
		known := append([]string{"metadata.name", "metadata.namespace"}, t.Fields...)
		if !slices.Contains(known, requirement.Field) {
			return only, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", requirement.Field))
		}
	}
	return only, nil
}

func (f filter) matches(object *Object) bool {
	return (f.namespace == "" || f.namespace == object.GetNamespace()) &&
		(f.labels.Empty() || f.labels.Matches(labels.Set(object.GetLabels()))) &&
		(f.fields.Empty() || f.fields.Matches(fieldsOf{object}))
}

// fieldsOf reads the fields of an object by their paths.
type fieldsOf struct{ object *Object }

// Has implements fields.Fields.
func (f fieldsOf) Has(string) bool { return true }

// Get implements fields.Fields.
func (f fieldsOf) Get(path string) string {
	value, _, _ := unstructured.NestedString(f.object.Object, strings.Split(path, ".")...)
	return value
}

// encoded returns an object as the client wants it.
func (f filter) encoded(object *Object) []byte {
	if !f.partial {
		return object.JSON()
	}
	if object.partial == nil {
		partial := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}}
		metadata, _ := object.Object["metadata"].(map[string]any)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(metadata, &partial.ObjectMeta); err != nil {
			panic(fmt.Sprintf("decode the metadata of %s %s: %v", object.GetKind(), object.Key(), err))
		}
		object.partial, _ = json.Marshal(partial) //nolint:errchkjson // metadata only
	}
	return object.partial
}

// admit plays the admission plugins NamespaceLifecycle and Priority.
func (s *Server) admit(t *table, object *Object) error {
	if t.Namespaced {
		namespace := s.Get("namespaces", "", object.GetNamespace())
		switch {
		case namespace == nil:
			return apierrors.NewNotFound(corev1.Resource("namespaces"), object.GetNamespace())
		case namespace.GetDeletionTimestamp() != nil:
			return t.forbidden(object, fmt.Sprintf("unable to create new content in namespace %s because it is being terminated", namespace.GetName()))
		}
	}
	if t.Resource.Resource != "pods" {
		return nil
	}
	class, _, _ := unstructured.NestedString(object.Object, "spec", "priorityClassName")
	value := int64(0)
	if class != "" {
		found := s.Get("priorityclasses", "", class)
		if found == nil {
			return t.forbidden(object, fmt.Sprintf("no PriorityClass with name %s was found", class))
		}
		value = int64(As[schedulingv1.PriorityClass](found).Value)
	}
	return unstructured.SetNestedField(object.Object, value, "spec", "priority")
}

func (t *table) forbidden(object *Object, why string) error {
	return apierrors.NewForbidden(t.GroupResource(), object.GetName(), fmt.Errorf("%s", why)) //nolint:err113 // the API server's words
}
