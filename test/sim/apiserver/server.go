// Package apiserver is an API server of Kubernetes in memory: one goroutine calls it, and nothing happens in it by itself.
// The caller decides when a request is answered and when a watch gets its next event. An equality test plays request
// scripts to it and to a real API server.
//
// It has versions, optimistic locking, patches, finalizers, graceful deletion of pods, preconditions, selectors,
// watches with initial events and expiry, dry run, generated names, and the admission of namespaces and priority classes.
// It has no rights, no schemas of custom resources, and few validations.
package apiserver

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/lateen-project/lateen/test/cluster"
)

// Object is one version of an object. Nothing changes it.
type Object struct {
	unstructured.Unstructured

	key     string // set when it is stored, as uid
	uid     types.UID
	typed   any    // decoded on demand
	raw     []byte // encoded on demand, as the two below
	proto   []byte // as protobuf
	partial []byte // its metadata
}

// Key returns namespace/name, or name of an object without namespace.
func (o *Object) Key() string {
	if o.key != "" {
		return o.key
	}
	return key(o.GetNamespace(), o.GetName())
}

// GetUID returns the UID.
func (o *Object) GetUID() types.UID {
	if o.uid != "" {
		return o.uid
	}
	return o.Unstructured.GetUID()
}

func key(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// JSON returns the encoded object.
func (o *Object) JSON() []byte {
	if o.raw == nil {
		o.raw, _ = json.Marshal(o.Object) //nolint:errchkjson // it was decoded from JSON
	}
	return o.raw
}

// As decodes an object; callers must not change the result. It panics if the object does not have this type.
func As[T any](object *Object) *T {
	if known, ok := object.typed.(*T); ok {
		return known
	}
	known := new(T)
	object.decode(known)
	return known
}

// decode converts an object to its type.
func (o *Object) decode(into any) {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into); err != nil {
		panic(fmt.Sprintf("decode %s %s: %v", o.GetKind(), o.Key(), err))
	}
	o.typed = into
}

// change is one entry of a table's history.
type change struct {
	revision    int64
	kind        watch.EventType
	before, now *Object // before is nil for ADDED
}

// table holds the objects of one resource.
type table struct {
	*Resource

	objects map[string]*Object // by key
	order   []*Object          // by key; nil: to be computed
	history []change
}

// Server is the API server.
type Server struct {
	Now  func() time.Time
	Name func() string    // returns the suffix of a generated name
	UID  func() types.UID // of a new object

	Streams bool  // watches can send initial events
	Lag     int64 // revisions by which lists of any version are behind

	ordered  []*table
	tables   map[schema.GroupVersionResource]*table
	revision int64
	watches  []*Watch
	swept    int64       // revision of garbage
	garbage  []Reference // at that revision
}

// New returns a server that has only the priority classes of Kubernetes.
func New(now func() time.Time, name func() string, uid func() types.UID) *Server {
	s := &Server{Now: now, Name: name, UID: uid, Streams: true, tables: map[schema.GroupVersionResource]*table{}, revision: 1}
	for _, resource := range Resources() {
		one := &table{Resource: resource, objects: map[string]*Object{}}
		s.ordered = append(s.ordered, one)
		s.tables[resource.GroupVersionResource] = one
	}
	for name, value := range map[string]int64{"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000} {
		class := &Object{}
		class.Object = map[string]any{"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": map[string]any{"name": name}, "value": value}
		s.table("priorityclasses").objects[name] = class
	}
	return s
}

// Revision returns the revision of the last change.
func (s *Server) Revision() int64 { return s.revision }

// table returns the table of a resource by its plural name, which is unique here.
func (s *Server) table(plural string) *table {
	for _, one := range s.ordered {
		if one.Resource.Resource == plural {
			return one
		}
	}
	panic("no resource " + plural)
}

// Serves reports whether there is a resource of that plural name.
func (s *Server) Serves(plural string) bool {
	return slices.ContainsFunc(s.ordered, func(one *table) bool { return one.Resource.Resource == plural })
}

// HasStatus reports whether a resource has the subresource status.
func (s *Server) HasStatus(plural string) bool { return s.table(plural).Status }

// Get returns an object, or nil. plural is the name of the resource; namespace is empty for a cluster-scoped one.
func (s *Server) Get(plural, namespace, name string) *Object {
	return s.table(plural).objects[key(namespace, name)]
}

// List returns all objects of a resource, ordered by key.
func (s *Server) List(plural string) []*Object { return s.table(plural).sorted() }

func (t *table) sorted() []*Object {
	if t.order != nil {
		return t.order
	}
	all := make([]*Object, 0, len(t.objects))
	for _, object := range t.objects {
		all = append(all, object)
	}
	slices.SortFunc(all, func(a, b *Object) int { return cmp.Compare(a.Key(), b.Key()) })
	t.order = all
	return all
}

// at returns the objects as they were at a revision, ordered by key.
func (t *table) at(revision int64) []*Object {
	was := &table{objects: map[string]*Object{}}
	for _, one := range t.history {
		if one.revision > revision {
			break
		}
		if one.kind == watch.Deleted {
			delete(was.objects, one.now.Key())
		} else {
			was.objects[one.now.Key()] = one.now
		}
	}
	return was.sorted()
}

// Find returns the object with that UID, of any resource, or nil.
func (s *Server) Find(uid types.UID) *Object {
	for _, one := range s.ordered {
		for _, object := range one.objects {
			if object.GetUID() == uid {
				return object
			}
		}
	}
	return nil
}

// Garbage returns the objects of which every owner is gone, ordered by resource and key.
func (s *Server) Garbage() []Reference {
	if s.swept == s.revision {
		return s.garbage
	}
	exists := map[types.UID]bool{}
	for _, one := range s.ordered {
		for _, object := range one.objects {
			exists[object.GetUID()] = true
		}
	}
	var found []Reference
	for _, one := range s.ordered {
		for _, object := range one.sorted() {
			owners := object.GetOwnerReferences()
			if len(owners) == 0 {
				continue
			}
			owned := slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool { return exists[o.UID] })
			if !owned && object.GetDeletionTimestamp() == nil {
				found = append(found, Reference{one.Resource.Resource, object})
			}
		}
	}
	s.swept, s.garbage = s.revision, found
	return found
}

// Reference is an object with its resource.
type Reference struct {
	Plural string
	*Object
}

// commit stores a new version of an object; now is nil for a deletion.
func (s *Server) commit(t *table, before, now *Object) *Object {
	s.revision++
	entry := change{revision: s.revision, before: before, now: now, kind: watch.Modified}
	switch {
	case now == nil: // the last event of an object has its last state with a new version
		entry.kind, entry.now = watch.Deleted, &Object{Unstructured: *before.DeepCopy()}
	case before == nil:
		entry.kind = watch.Added
	}
	entry.now.SetResourceVersion(strconv.FormatInt(s.revision, 10))
	entry.now.key, entry.now.uid = entry.now.Key(), entry.now.GetUID()
	t.order = nil
	if entry.kind == watch.Deleted {
		delete(t.objects, before.Key())
	} else {
		t.objects[entry.now.Key()] = entry.now
	}
	t.history = append(t.history, entry)
	return entry.now
}

// Changes returns how many changes of a resource there were.
func (s *Server) Changes(plural string) int { return len(s.table(plural).history) }

// streamType is the media type of a watch whose frames are protobuf: each has its length in 4 bytes before it.
const streamType = runtime.ContentTypeProtobuf + ";stream=watch"

// encode appends the frame of an event.
func (w *Watch) encode(into *bytes.Buffer, kind watch.EventType, object *Object) {
	if !w.protobuf {
		into.WriteString(`{"type":"` + string(kind) + `","object":`)
		into.Write(w.filter.encoded(object))
		into.WriteString("}\n")
		return
	}
	event := metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: object.protobuf()}}
	data, err := event.Marshal()
	if err != nil {
		panic(fmt.Sprintf("encode an event of %s: %v", object.Key(), err))
	}
	into.Write(binary.BigEndian.AppendUint32(nil, uint32(len(data)))) //nolint:gosec // an object is small
	into.Write(data)
}

// protobuf returns the encoded object of a built-in resource.
func (o *Object) protobuf() []byte {
	if o.proto != nil {
		return o.proto
	}
	typed, known := o.typed.(runtime.Object)
	if !known {
		var err error
		if typed, err = scheme.Scheme.New(o.GroupVersionKind()); err != nil {
			panic(fmt.Sprintf("make %s: %v", o.GetKind(), err))
		}
		o.decode(typed)
	}
	var data bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(typed, &data); err != nil {
		panic(fmt.Sprintf("encode %s %s: %v", o.GetKind(), o.Key(), err))
	}
	o.proto = data.Bytes()
	return o.proto
}

// expired returns the status that ends a watch with 410.
func expired() *Object {
	status := apierrors.NewResourceExpired("too old resource version").Status()
	status.Kind, status.APIVersion = "Status", "v1"
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		panic(fmt.Sprintf("convert a status: %v", err))
	}
	object := &Object{}
	object.Object = content
	return object
}

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
	switch watches := slices.Contains([]string{"1", "true"}, request.Query.Get("watch")); {
	case request.Method == http.MethodGet && watches:
		return "watch"
	case request.Method == http.MethodGet && named:
		return "get"
	case request.Method == http.MethodDelete && named:
		return "delete"
	}
	verbs := map[string]string{
		http.MethodGet: "list", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "deletecollection",
	}
	return cmp.Or(verbs[request.Method], strings.ToLower(request.Method))
}

// Resource describes one resource that the server serves.
type Resource struct {
	schema.GroupVersionResource

	Kind       string
	Namespaced bool
	Status     bool     // it has the subresource status
	Fields     []string // that field selectors may name, besides metadata.name and metadata.namespace
}

func resource(group, version, plural, kind string, namespaced, status bool, fields ...string) *Resource {
	return &Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: plural},
		Kind:                 kind, Namespaced: namespaced, Status: status, Fields: fields,
	}
}

// GVK returns the kind with group and version.
func (r *Resource) GVK() schema.GroupVersionKind { return r.GroupVersion().WithKind(r.Kind) }

// builtIn reports whether Kubernetes itself defines the resource. All others have definitions.
func (r *Resource) builtIn() bool { return scheme.Scheme.Recognizes(r.GVK()) }

const (
	snapshotGroup = "snapshot.storage.k8s.io"
	veleroGroup   = "velero.io"
)

// Resources returns what the server serves: the resources that an agent, Velero's server or the actors use.
func Resources() []*Resource {
	return []*Resource{
		resource("", "v1", "pods", "Pod", true, true, "spec.nodeName", "status.phase"),
		resource("", "v1", "nodes", "Node", false, true),
		resource("", "v1", "namespaces", "Namespace", false, true),
		resource("", "v1", "configmaps", "ConfigMap", true, false),
		resource("", "v1", "secrets", "Secret", true, false),
		resource("", "v1", "serviceaccounts", "ServiceAccount", true, false),
		resource("", "v1", "events", "Event", true, false, "involvedObject.uid", "involvedObject.name", "involvedObject.kind", "reason", "type"),
		resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", true, true),
		resource("", "v1", "persistentvolumes", "PersistentVolume", false, true),
		resource("apps", "v1", "daemonsets", "DaemonSet", true, true),
		resource("apps", "v1", "deployments", "Deployment", true, true),
		resource("batch", "v1", "jobs", "Job", true, true),
		resource("coordination.k8s.io", "v1", "leases", "Lease", true, false),
		resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", false, false),
		resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", false, false),
		resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", false, false),
		resource("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", false, true),
		resource(snapshotGroup, "v1", "volumesnapshots", "VolumeSnapshot", true, true),
		resource(snapshotGroup, "v1", "volumesnapshotcontents", "VolumeSnapshotContent", false, true),
		resource(snapshotGroup, "v1", "volumesnapshotclasses", "VolumeSnapshotClass", false, false),
		resource(veleroGroup, "v1", "backups", "Backup", true, false),
		resource(veleroGroup, "v1", "restores", "Restore", true, false),
		resource(veleroGroup, "v1", "podvolumebackups", "PodVolumeBackup", true, false),
		resource(veleroGroup, "v1", "podvolumerestores", "PodVolumeRestore", true, false),
		resource(veleroGroup, "v1", "backuprepositories", "BackupRepository", true, false),
		resource(veleroGroup, "v1", "backupstoragelocations", "BackupStorageLocation", true, false),
		resource(veleroGroup, "v2alpha1", "datauploads", "DataUpload", true, false),
		resource(veleroGroup, "v2alpha1", "datadownloads", "DataDownload", true, false),
	}
}

// discover returns the resources of a group version; nil if there are none.
func (s *Server) discover(version schema.GroupVersion) []byte {
	list := metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version.String(),
	}
	for _, table := range s.ordered {
		if table.GroupVersion() != version {
			continue
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: table.Resource.Resource, SingularName: strings.ToLower(table.Kind), Kind: table.Kind, Namespaced: table.Namespaced,
			Verbs: metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"},
		})
	}
	if list.APIResources == nil {
		return nil
	}
	body, _ := json.Marshal(list) //nolint:errchkjson // plain strings
	return body
}
