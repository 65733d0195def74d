package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/lateen-project/lateen/test/testenv"
)

// resources are those that cases may speak of, by kind; for the others the plural is made of the kind.
func resources() map[string]schema.GroupVersionResource {
	core, storage, snapshots := schema.GroupVersion{Version: "v1"}, schema.GroupVersion{Group: "storage.k8s.io", Version: "v1"},
		schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}
	all := map[string]schema.GroupVersionResource{
		"Pod": core.WithResource("pods"), "PersistentVolumeClaim": core.WithResource("persistentvolumeclaims"),
		"PersistentVolume": core.WithResource("persistentvolumes"), "Event": core.WithResource("events"),
		"ResourceQuota":         core.WithResource("resourcequotas"),
		"VolumeAttachment":      storage.WithResource("volumeattachments"),
		"PriorityClass":         {Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
		"StorageClass":          storage.WithResource("storageclasses"),
		"VolumeSnapshotClass":   snapshots.WithResource("volumesnapshotclasses"),
		"VolumeSnapshot":        snapshots.WithResource("volumesnapshots"),
		"VolumeSnapshotContent": snapshots.WithResource("volumesnapshotcontents"),
	}
	for _, kind := range testenv.Kinds() {
		all[string(kind)] = kind.Resource()
	}
	all[string(repository)] = velerov1.SchemeGroupVersion.WithResource("backuprepositories")
	all["Job"] = batchv1.SchemeGroupVersion.WithResource("jobs")
	return all
}

// recorded are the kinds whose objects a history keeps.
func recorded() []string {
	all := []string{
		"Pod", "PersistentVolumeClaim", "PersistentVolume", "Event", "VolumeSnapshot", "VolumeSnapshotContent", "Job",
	}
	for _, kind := range kinds() {
		all = append(all, string(kind))
	}
	return all
}

// kindOf is the kind that an object of a case has, which must be one of those known.
func kindOf(object Object) (string, error) {
	kind, _ := object["kind"].(string)
	if _, known := resources()[kind]; !known {
		return "", fmt.Errorf("kind %q of an object is not known to these cases", kind)
	}
	return kind, nil
}

// biography is all that was seen of one object.
type biography struct {
	kind     string
	versions []map[string]any
	at       []int // when each was seen: the how manieth of all
	gone     bool
}

func (b *biography) last() map[string]any { return b.versions[len(b.versions)-1] }

// History keeps every version of every object that the watches of a control plane tell of.
type History struct {
	lock    sync.Mutex
	objects map[types.UID]*biography
	order   []types.UID
	seen    int           // versions of all objects
	changed chan struct{} // closed and replaced at every change
}

// listTimeout bounds the first lists of a history.
const listTimeout = 30 * time.Second

// Record begins a history, which goes on until ctx is done.
func Record(ctx context.Context, client dynamic.Interface) (*History, error) {
	h := &History{objects: map[types.UID]*biography{}, changed: make(chan struct{})}
	var synced []cache.InformerSynced
	for _, kind := range recorded() {
		informer := dynamicinformer.NewFilteredDynamicInformer(client, resources()[kind], metav1.NamespaceAll, 0, nil, nil).Informer()
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { h.see(kind, object, false) },
			UpdateFunc: func(_, object any) { h.see(kind, object, false) },
			DeleteFunc: func(object any) { h.see(kind, object, true) },
		})
		if err != nil {
			return nil, fmt.Errorf("watch objects of kind %s: %w", kind, err)
		}
		synced = append(synced, informer.HasSynced)
		go informer.RunWithContext(ctx)
	}
	listing, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if !cache.WaitForCacheSync(listing.Done(), synced...) {
		return nil, fmt.Errorf("list the objects of a history: %w", context.Cause(listing))
	}
	return h, nil
}

func (h *History) see(kind string, object any, deleted bool) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	resource, ok := object.(*unstructured.Unstructured)
	if !ok {
		return
	}
	h.lock.Lock()
	defer h.lock.Unlock()
	life := h.objects[resource.GetUID()]
	if life == nil {
		life = &biography{kind: kind}
		h.objects[resource.GetUID()] = life
		h.order = append(h.order, resource.GetUID())
	}
	life.versions, life.at = append(life.versions, resource.Object), append(life.at, h.seen)
	h.seen++
	life.gone = deleted
	close(h.changed)
	h.changed = make(chan struct{})
}

// terminalError is something wrong that no change can mend.
type terminalError struct{ error }

// Until returns once check finds nothing wrong any more, or a terminal error; the error is the last that it found.
func (h *History) Until(ctx context.Context, check func() error) error {
	for {
		h.lock.Lock()
		wrong, changed := check(), h.changed
		h.lock.Unlock()
		if wrong == nil || errors.As(wrong, &terminalError{}) {
			return wrong
		}
		select {
		case <-ctx.Done():
			return wrong
		case <-changed:
		}
	}
}

// in are the objects of a kind in one of the namespaces, or in none; the caller holds the lock, as in a check.
func (h *History) in(kind string, namespaces ...string) (found []*biography) {
	for _, uid := range h.order {
		life := h.objects[uid]
		if life.kind != kind {
			continue
		}
		namespace := meta(life.last()).GetNamespace()
		if namespace == "" || slices.Contains(namespaces, namespace) {
			found = append(found, life)
		}
	}
	return found
}

func meta(object map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: object}
}

// once says how far everything that was ever there in the namespaces is from what is wanted.
func (h *History) once(want Object, namespaces ...string) error {
	return h.any(want, namespaces, func(life *biography) []map[string]any { return life.versions })
}

// now says how far everything that is there in the namespaces is from what is wanted.
func (h *History) now(want Object, namespaces ...string) error {
	return h.any(want, namespaces, func(life *biography) []map[string]any {
		if life.gone {
			return nil
		}
		return []map[string]any{life.last()}
	})
}

// most is how many objects as wanted there were at most at the same time. All are of one kind, so that they were seen in
// the order in which they changed.
func (h *History) most(want Object, namespaces ...string) (most int) {
	more := map[int]int{} // by when something was seen
	for _, life := range h.in(meta(want).GetKind(), namespaces...) {
		was := false
		for i, version := range life.versions {
			there := !life.gone || i < len(life.versions)-1
			is := there && len(match(map[string]any(want), version, "")) == 0
			if is && !was {
				more[life.at[i]]++
			} else if was && !is {
				more[life.at[i]]--
			}
			was = is
		}
	}
	now := 0
	for _, at := range slices.Sorted(maps.Keys(more)) {
		now += more[at]
		most = max(most, now)
	}
	return most
}

// any returns nil if one of the versions is as wanted, or else what is wrong with the one that is nearest.
func (h *History) any(want Object, namespaces []string, versions func(*biography) []map[string]any) error {
	kind, err := kindOf(want)
	if err != nil {
		return err
	}
	name := meta(want).GetName()
	var nearest []string
	for _, life := range h.in(kind, namespaces...) {
		if name != "" && !strings.HasPrefix(name, "~") && meta(life.last()).GetName() != name {
			continue
		}
		for _, version := range versions(life) {
			unlike := match(map[string]any(want), version, "")
			if len(unlike) == 0 {
				return nil
			}
			if nearest == nil || len(unlike) <= len(nearest) {
				nearest = unlike
			}
		}
	}
	if nearest == nil {
		return fmt.Errorf("no %s %s", kind, name)
	}
	return fmt.Errorf("%s %s: %s", kind, name, strings.Join(nearest, "; "))
}

// apply creates an object, or merges it into the one that exists.
func apply(ctx context.Context, client dynamic.Interface, object Object) error {
	wanted := meta(object)
	resource, err := resourceOf(client, object)
	if err != nil {
		return err
	}
	if wanted.GetAPIVersion() == "" {
		wanted.SetAPIVersion(resources()[wanted.GetKind()].GroupVersion().String())
	}
	_, err = resource.Create(ctx, wanted, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		patch, _ := json.Marshal(wanted) //nolint:errchkjson // it was read from YAML
		_, err = resource.Patch(ctx, wanted.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", wanted.GetKind(), wanted.GetName(), err)
	}
	return nil
}

// remove deletes an object at once.
func remove(ctx context.Context, client dynamic.Interface, object Object) error {
	resource, err := resourceOf(client, object)
	if err != nil {
		return err
	}
	err = resource.Delete(ctx, meta(object).GetName(), metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s %s: %w", meta(object).GetKind(), meta(object).GetName(), err)
	}
	return nil
}

func resourceOf(client dynamic.Interface, object Object) (dynamic.ResourceInterface, error) {
	kind, err := kindOf(object)
	if err != nil {
		return nil, err
	}
	all := client.Resource(resources()[kind])
	if namespace := meta(object).GetNamespace(); namespace != "" {
		return all.Namespace(namespace), nil
	}
	return all, nil
}

// Request says what happens when agents ask the API server for something.
type Request struct {
	// Like is a regular expression for the method and the path with its query, Body one for what is sent.
	Like  string `json:"like"`
	Body  string `json:"body"`
	Times int    `json:"times"` // how many such requests of all agents it happens to; 0: every one
	// Before happens before the request gets to the API server, to which it does not get if the agent is gone by then.
	// After happens before the agent gets the answer.
	Before []Step `json:"before"`
	After  []Step `json:"after"`
	Answer int    `json:"answer"` // an HTTP status instead of what is asked for
}

// requests counts to which requests something has happened.
type requests struct {
	lock sync.Mutex
	met  map[*Request]int
}

// of is what happens to a request, or nil.
func (r *requests) of(all []Request, asked *http.Request) (*Request, error) {
	for i := range all {
		rule := &all[i]
		like, err := rule.matches(asked)
		if err != nil {
			return nil, err
		}
		if like && r.take(rule) {
			return rule, nil
		}
	}
	return nil, nil //nolint:nilnil // nothing happens to most of them
}

// take counts one more request, unless there were enough.
func (r *requests) take(rule *Request) bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.met == nil {
		r.met = map[*Request]int{}
	}
	if rule.Times > 0 && r.met[rule] >= rule.Times {
		return false
	}
	r.met[rule]++
	return true
}

func (r *Request) matches(asked *http.Request) (bool, error) {
	like, err := regexp.MatchString(r.Like, asked.Method+" "+asked.URL.RequestURI())
	if err != nil || !like || r.Body == "" {
		return like, err
	}
	body, err := io.ReadAll(asked.Body)
	if err != nil {
		return false, fmt.Errorf("read request: %w", err)
	}
	asked.Body = io.NopCloser(bytes.NewReader(body))
	return regexp.Match(r.Body, body)
}

// met is the key of what happens to a request, in its context.
type met struct{}

// openLine starts what the requests of an agent go through on their way to the API server, and returns the configuration
// by which they do. It speaks no TLS and has the agent's rights.
func (c *caseRun) openLine(ctx context.Context, config *rest.Config, on *host) (*rest.Config, error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("read address of the API server: %w", err)
	}
	forward := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: func(response *http.Response) error {
			if rule, ok := response.Request.Context().Value(met{}).(*Request); ok {
				return c.takeAll(ctx, rule.After)
			}
			return nil
		},
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for an agent: %w", err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, asked *http.Request) {
		rule, err := c.requests.of(c.testCase.Requests, asked)
		if err != nil {
			c.fail(err)
		}
		if rule == nil {
			forward.ServeHTTP(w, asked)
		} else if c.happens(ctx, rule, on, w) {
			forward.ServeHTTP(w, asked.WithContext(context.WithValue(asked.Context(), met{}, rule)))
		}
	})}
	go func() { _ = server.Serve(listener) }() // until it is closed
	c.atEnd(func() { _ = server.Close() })
	through := rest.CopyConfig(config)
	through.Host = "http://" + listener.Addr().String()
	return through, nil
}

// happens does what happens before a request, and reports whether the request goes on.
func (c *caseRun) happens(ctx context.Context, rule *Request, on *host, answer http.ResponseWriter) bool {
	asker := on.run()
	if err := c.takeAll(ctx, rule.Before); err != nil {
		c.fail(err)
	}
	select {
	case <-asker.process.Ended():
		panic(http.ErrAbortHandler) // nobody waits for the answer
	default:
	}
	if rule.Answer == 0 {
		return true
	}
	status := apierrors.NewGenericServerResponse(rule.Answer, "", schema.GroupResource{}, "", "as the case wants it", 0, true).Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	answer.Header().Set("Content-Type", "application/json")
	answer.WriteHeader(rule.Answer)
	if err := json.NewEncoder(answer).Encode(status); err != nil {
		c.fail(fmt.Errorf("answer a request: %w", err))
	}
	return false
}

// takeAll does steps at a request, once the resource has its name.
func (c *caseRun) takeAll(ctx context.Context, steps []Step) error {
	if len(steps) == 0 {
		return nil
	}
	select {
	case <-c.named:
	case <-ctx.Done():
		return ctx.Err()
	}
	for i, step := range steps {
		if err := c.take(ctx, step); err != nil {
			return fmt.Errorf("step %d of %d at a request: %w", i+1, len(steps), err)
		}
	}
	return nil
}
