// Package apiserver is an API server of Kubernetes in memory: one goroutine calls it, and nothing happens in it by itself.
// The caller decides when a request is answered and when a watch gets its next event. An equality test plays request
// scripts to it and to a real API server.
//
// It has versions, optimistic locking, patches, finalizers, graceful deletion of pods, preconditions, selectors,
// watches with bookmarks and expiry, initial events of watches, dry run, generated names, and the admission of
// namespaces and priority classes. It has no rights, no schemas of custom resources, and few validations.
package apiserver

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
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

	objects   map[string]*Object // by key
	order     []*Object          // by key; nil: to be computed
	history   []change
	compacted int64 // watches from before this revision have expired
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
	opened   int
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

// Compact forgets the history of a resource: watches that are behind have expired.
func (s *Server) Compact(plural string) {
	t := s.table(plural)
	t.compacted = s.revision
}

// Changes returns how many changes of a resource there were.
func (s *Server) Changes(plural string) int { return len(s.table(plural).history) }
