// Package informers turns events into keys and keeps typed caches. It never writes to the API and never decides
// anything.
package informers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/api"
)

// Indexes.
const (
	ByUID      = "uid"      // every informer
	BySnapshot = "snapshot" // DataUploads, by namespace/name of the VolumeSnapshot that they read
	ByNode     = "node"     // transfers, by the nodes whose agents may own them
	ByPod      = "pod"      // unsettled transfers of volumes of pods, by namespace/name of the pod
	byAbout    = "about"    // Events, by UID of the object that they are about
)

// Object is any API object that an informer can cache.
type Object interface {
	metav1.Object
	runtime.Object
}

// Source lists and watches the objects of one resource; typed clients implement it.
type Source[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// Informer is a shared informer with typed objects. Its reads include the writes of this process that were recorded.
type Informer[T Object] struct {
	ownWrites[T]

	name     string
	shared   cache.SharedIndexInformer
	failure  atomic.Pointer[failure]
	denied   func(error) // called for a request that RBAC does not allow; nil: the informer retries
	watchdog *Watchdog   // may be nil
}

// Watchdog reports caches whose requests fail, whether they have synced before or not.
type Watchdog struct {
	Clock  clock.PassiveClock
	After  time.Duration        // how long they have failed
	Report func(failing string) // once in each outage; must not block
}

// failure is the last request that failed, and the outage that it belongs to: the requests since the cache was last current.
type failure struct {
	err     error
	since   time.Time // the first request that failed
	version string    // of the cache since then
	told    bool      // the watchdog has reported it
}

// Scope selects the cached objects of a resource; empty selectors select all.
type Scope struct {
	Labels, Fields string
	// Consistent has the first list read all writes. Without it, an API server that does not stream lists may answer from a
	// cache that lacks the last writes.
	Consistent bool
	// UnknownFields keeps the managedFields of objects with a field that their Go type lacks: see api.UnknownFields. All others
	// lose them.
	UnknownFields bool
}

// ListWatch lists and watches the objects of a source that a scope selects.
func ListWatch[L runtime.Object](source Source[L], scope Scope) *cache.ListWatch {
	narrowed := func(opts metav1.ListOptions) metav1.ListOptions {
		opts.LabelSelector, opts.FieldSelector = scope.Labels, scope.Fields
		return opts
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			if opts = narrowed(opts); scope.Consistent && opts.ResourceVersion == "0" {
				opts.ResourceVersion = ""
			}
			return source.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return source.Watch(ctx, narrowed(opts))
		},
	}
}

// New returns an informer; Run starts it. trim removes unused fields in place before an object is cached. It must
// keep the fields from which a patch is computed.
func New[T Object, L runtime.Object](name string, source Source[L], example T, scope Scope, trim func(T)) (*Informer[T], error) {
	created, requests := &Informer[T]{name: name}, ListWatch(source, scope)
	open := requests.WatchFuncWithContext
	requests.WatchFuncWithContext = func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
		opened, err := open(ctx, opts)
		if err == nil && opts.SendInitialEvents == nil { // it continues a list
			created.failure.Store(nil)
		}
		return opened, err
	}
	shared := cache.NewSharedIndexInformer(requests, example, 0, cache.Indexers{ByUID: byUID})
	err := shared.SetTransform(func(object any) (any, error) {
		if known, ok := object.(T); ok {
			if !scope.UnknownFields || len(api.UnknownFields(known)) == 0 {
				known.SetManagedFields(nil)
			}
			trim(known)
		}
		return object, nil
	})
	if err != nil {
		return nil, fmt.Errorf("set transform of %s: %w", name, err)
	}
	created.shared = shared
	err = shared.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
		created.fail(err)
		if created.denied != nil && apierrors.IsForbidden(err) {
			created.denied(err)
			return
		}
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
	})
	if err != nil {
		return nil, fmt.Errorf("set error handler of %s: %w", name, err)
	}
	return created, nil
}

func byUID(object any) ([]string, error) {
	meta, err := apimeta.Accessor(object)
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	return []string{string(meta.GetUID())}, nil
}

// Get returns the newest version of an object, or false. The object is shared: copy it before changing it.
func (i *Informer[T]) Get(key string) (T, bool) {
	i.lock.Lock()
	defer i.lock.Unlock()
	return i.newest(key)
}

// cached returns the cached object, or false.
func (i *Informer[T]) cached(key string) (T, bool) {
	object, _, _ := i.shared.GetStore().GetByKey(key)
	known, ok := object.(T)
	return known, ok
}

// List returns the newest versions of all objects, shared like those of Get.
func (i *Informer[T]) List() []T {
	i.lock.Lock()
	defer i.lock.Unlock()
	keys := sets.New(i.shared.GetStore().ListKeys()...)
	for key := range i.written {
		keys.Insert(key)
	}
	all := make([]T, 0, len(keys))
	for key := range keys {
		if object, exists := i.newest(key); exists {
			all = append(all, object)
		}
	}
	return all
}

// Index adds an index for ByIndex; of returns the index values of an object. Call it before Run.
func (i *Informer[T]) Index(name string, of func(T) []string) error {
	err := i.shared.AddIndexers(cache.Indexers{name: func(object any) ([]string, error) {
		if known, ok := object.(T); ok {
			return of(known), nil
		}
		return nil, nil
	}})
	if err != nil {
		return fmt.Errorf("index %s by %s: %w", i.name, name, err)
	}
	return nil
}

// ByIndex returns the newest versions of the cached objects with that index value, shared like those of Get.
func (i *Informer[T]) ByIndex(index, word string) []T {
	i.lock.Lock()
	defer i.lock.Unlock()
	keys, err := i.shared.GetIndexer().IndexKeys(index, word)
	if err != nil {
		return nil
	}
	var all []T
	for _, key := range keys {
		if object, exists := i.newest(key); exists {
			all = append(all, object)
		}
	}
	return all
}

// AddHandler calls enqueue with every object that is added, updated or deleted. It skips updates without a new
// version. The checker is done when enqueue has received every object of the first list.
func (i *Informer[T]) AddHandler(enqueue func(T)) (cache.DoneChecker, error) {
	registration, err := i.shared.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { withObject(object, enqueue) },
		UpdateFunc: func(before, after any) {
			if !sameVersion[T](before, after) {
				withObject(after, enqueue)
			}
		},
		DeleteFunc: func(object any) { withObject(object, enqueue) },
	})
	if err != nil {
		return nil, fmt.Errorf("add handler to %s: %w", i.name, err)
	}
	return registration.HasSyncedChecker(), nil
}

// withObject unwraps the tombstone of an object whose deletion was only noticed by a later list.
func withObject[T Object](object any, enqueue func(T)) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	if known, ok := object.(T); ok {
		enqueue(known)
	}
}

func sameVersion[T Object](before, after any) bool {
	old, ok := before.(T)
	if !ok {
		return false
	}
	updated, ok := after.(T)
	return ok && old.GetResourceVersion() == updated.GetResourceVersion()
}

func (i *Informer[T]) run(ctx context.Context)   { i.shared.RunWithContext(ctx) }
func (i *Informer[T]) synced() cache.DoneChecker { return i.shared.HasSyncedChecker() }

// fail records a request that failed. The outage ends with the next change of the cache, or when a list is followed by a watch.
func (i *Informer[T]) fail(err error) {
	now := &failure{err: err, version: i.shared.LastSyncResourceVersion()}
	defer i.failure.Store(now)
	if i.watchdog == nil {
		return
	}
	now.since = i.watchdog.Clock.Now()
	if last := i.failure.Load(); last != nil && last.version == now.version {
		now.since, now.told = last.since, last.told
	}
	if _, unreachable := errors.AsType[*url.Error](err); unreachable { // this is no matter of one cache, and does not count
		now.since = i.watchdog.Clock.Now()
	} else if !now.told && i.watchdog.Clock.Since(now.since) >= i.watchdog.After {
		now.told = true
		i.watchdog.Report(i.name + ": " + err.Error())
	}
}

func (i *Informer[T]) watch(with *Watchdog) { i.watchdog = with }

// stale reports whether the last request failed, and the cache has not changed since.
func (i *Informer[T]) stale() bool {
	last := i.failure.Load()
	return last != nil && last.version == i.shared.LastSyncResourceVersion()
}

// lacks describes why the informer is not synced; empty if it is.
func (i *Informer[T]) lacks() string {
	switch failure := i.failure.Load(); {
	case i.shared.HasSynced():
		return ""
	case failure == nil:
		return i.name + ": no response"
	default:
		return i.name + ": " + failure.err.Error()
	}
}

// EnqueueOwner returns a handler that enqueues the custom resource of that kind which controls the object. It ignores
// the label that names the owner: anybody can set it, and it truncates long names.
func EnqueueOwner[T Object](kind string, enqueue func(key string)) func(T) {
	return func(object T) {
		if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.Kind == kind {
			enqueue(cache.NewObjectName(object.GetNamespace(), owner.Name).String())
		}
	}
}

// Key returns the queue key of an object: namespace/name.
func Key(object metav1.Object) string {
	return cache.MetaObjectToName(object).String()
}

// group holds informers that run together.
type group struct {
	all []informer
	err error // why one could not be created; no more are created then
}

// informer is an Informer of any type.
type informer interface {
	run(ctx context.Context)
	synced() cache.DoneChecker
	lacks() string
	watch(with *Watchdog)
}

// add creates an informer in a group.
func add[T Object, L runtime.Object](g *group, name string, source Source[L], example T, scope Scope, trim func(T)) *Informer[T] {
	if g.err != nil {
		return nil
	}
	created, err := New(name, source, example, scope, trim)
	if err != nil {
		g.err = err
		return nil
	}
	g.all = append(g.all, created)
	return created
}

// noTrim keeps the whole object.
func noTrim[T Object](T) {}

// Run watches until the context ends. It returns when every informer has stopped.
func (g *group) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, one := range g.all {
		running.Go(func() { one.run(ctx) })
	}
	running.Wait()
}

// Synced returns checkers that are done when the caches hold what the API server had at the start.
func (g *group) Synced() []cache.DoneChecker {
	checkers := make([]cache.DoneChecker, 0, len(g.all))
	for _, one := range g.all {
		checkers = append(checkers, one.synced())
	}
	return checkers
}

// Lacking describes the caches that are not synced, with the errors of their last requests; empty if all are synced.
func (g *group) Lacking() string {
	var lacks []string
	for _, one := range g.all {
		if lack := one.lacks(); lack != "" {
			lacks = append(lacks, lack)
		}
	}
	return strings.Join(lacks, "; ")
}

// Watch has a watchdog watch all informers. Call it before Run.
func (g *group) Watch(with Watchdog) {
	for _, one := range g.all {
		one.watch(&with)
	}
}

// Clientset returns typed clients for Velero's kinds without a generated clientset.
type Clientset struct {
	v1, v2 rest.Interface
	codecs runtime.ParameterCodec
}

// NewClientset returns a Clientset; it sends no request.
func NewClientset(config *rest.Config) (*Clientset, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	if err := velerov1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register velero.io/v1: %w", err)
	}
	if err := velerov2alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register velero.io/v2alpha1: %w", err)
	}
	config = rest.CopyConfig(config)
	config.APIPath = "/apis"
	config.ContentType = runtime.ContentTypeJSON // custom resources have no protobuf
	config.AcceptContentTypes = runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	velero := &Clientset{codecs: runtime.NewParameterCodec(scheme)}
	for version, client := range map[schema.GroupVersion]*rest.Interface{velerov1.SchemeGroupVersion: &velero.v1, velerov2alpha1.SchemeGroupVersion: &velero.v2} {
		config.GroupVersion = &version
		created, err := rest.RESTClientFor(config)
		if err != nil {
			return nil, fmt.Errorf("create client for %s: %w", version, err)
		}
		*client = created
	}
	return velero, nil
}

// TargetFSType returns spec.targetVolume.fsType of a DataDownload; empty if there is none. The types of Velero 1.18 lack the field, so
// the caches do too.
func (c *Clientset) TargetFSType(ctx context.Context, namespace, name string) (string, error) {
	var download struct {
		Spec struct {
			TargetVolume struct {
				FSType string `json:"fsType"`
			} `json:"targetVolume"`
		} `json:"spec"`
	}
	answer := c.v2.Get().Namespace(namespace).Resource("datadownloads").Name(name).Do(ctx)
	if err := answer.Error(); err != nil { // Raw would hide why
		return "", fmt.Errorf("get DataDownload %s/%s: %w", namespace, name, err)
	}
	data, _ := answer.Raw()
	if err := json.Unmarshal(data, &download); err != nil {
		return "", fmt.Errorf("decode DataDownload %s/%s: %w", namespace, name, err)
	}
	return download.Spec.TargetVolume.FSType, nil
}
