package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
