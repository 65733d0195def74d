// Package orphans deletes Lateen's objects whose transfer is deleted or done. If the caches lack the transfer, it
// lists the transfers that are not done from the API server before it deletes anything.
package orphans

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/metrics"
)

// Sweeper deletes objects that outlived their transfer. An agent may crash or be replaced by Velero's at any moment.
// Snapshots have no owner by which Kubernetes could collect them.
type Sweeper struct {
	Client    metadata.Interface
	Namespace string // of Velero
	// Owner reports whether the transfer with that UID exists and whether it is done: terminal and without our
	// finalizer. It reads caches that hold all transfers of the namespace without api.LabelDone.
	Owner func(uid types.UID) (exists, done bool)
	// Served reports whether the cluster has snapshots.
	Served func() bool
	// ForeignContent reports whether a VolumeSnapshotContent may belong to another namespace. Contents have no
	// namespace, and another Velero of the cluster has transfers of its own.
	ForeignContent func(content string) bool
	// Remove maps a resource to the function that removes its orphans. Orphans of other resources are deleted. The
	// next sweep calls the function again if the orphan still exists.
	Remove map[string]func(ctx context.Context, orphan *metav1.PartialObjectMetadata) error

	Interval time.Duration // between two sweeps; 0: 10 min
	Clock    clock.Clock
	Metrics  *metrics.Coordination

	counted map[types.UID]bool // UIDs of removed orphans, while they still exist
}

// minAge is the minimum age of an orphan.
const minAge = 10 * time.Minute

// Resources that can have orphans.
const (
	Pods      = "pods"
	Claims    = "persistentvolumeclaims"
	Snapshots = "volumesnapshots"
	Contents  = "volumesnapshotcontents"
)

// Resources returns the resources that can have orphans, in the order of the sweep: users before what they use.
func Resources() []string {
	return []string{Pods, Claims, Snapshots, Contents}
}

// Run sweeps at once, then in each interval until the context ends.
func (s *Sweeper) Run(ctx context.Context) {
	interval := cmp.Or(s.Interval, 10*time.Minute)
	for ctx.Err() == nil {
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to sweep orphans", "retryAfter", interval)
		}
		select {
		case <-ctx.Done():
		case <-s.Clock.After(interval):
		}
	}
}

// Sweep finds and removes orphans once. Do not call it concurrently. A failure does not stop the rest of the sweep.
func (s *Sweeper) Sweep(ctx context.Context) error {
	var all []error
	var suspects []suspect
	for _, resource := range Resources() {
		found, err := s.suspects(ctx, resource)
		if err != nil {
			all = append(all, err)
		}
		suspects = append(suspects, found...)
	}
	orphans, err := s.confirm(ctx, suspects)
	if err != nil {
		all = append(all, err)
	}
	there := map[types.UID]bool{}
	for _, orphan := range orphans {
		if err := s.remove(ctx, orphan); err != nil {
			all = append(all, err)
			continue
		}
		there[orphan.UID] = true
	}
	if len(all) > 0 {
		maps.Copy(there, s.counted) // some objects may not have been listed
	}
	s.counted = there
	return errors.Join(all...)
}

// suspect is an object that is an orphan according to the caches.
type suspect struct {
	*metav1.PartialObjectMetadata
	resource string
	owner    types.UID
	done     bool // its transfer exists, terminal and without our finalizer
}

// suspects lists the metadata of our objects of a resource and returns the suspects.
func (s *Sweeper) suspects(ctx context.Context, resource string) ([]suspect, error) {
	if snapshot := resource == Snapshots || resource == Contents; snapshot && !s.Served() {
		return nil, nil
	}
	var found []suspect
	selector := api.LabelMover + "=true," + api.LabelOwnerUID + ",!" + api.LabelKept
	err := s.list(ctx, s.at(resource), selector, func(object *metav1.PartialObjectMetadata) {
		owner := types.UID(object.Labels[api.LabelOwnerUID])
		if controller := metav1.GetControllerOfNoCopy(object); controller != nil && controller.UID != owner {
			return // the creator copied our labels
		}
		if resource == Contents && s.ForeignContent(object.Name) {
			return
		}
		exists, done := s.Owner(owner)
		if old := s.Clock.Since(object.CreationTimestamp.Time) > minAge; old && (!exists || done) {
			found = append(found, suspect{object, resource, owner, exists})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list %s of movers: %w", resource, err)
	}
	return found, nil
}

// confirm lists the transfers that are not done from the API server if the caches lack some. A cache may have lost its
// watch, and a deletion cannot be undone.
func (s *Sweeper) confirm(ctx context.Context, suspects []suspect) ([]suspect, error) {
	var orphans, missing []suspect
	for _, each := range suspects {
		if each.done {
			orphans = append(orphans, each)
		} else {
			missing = append(missing, each)
		}
	}
	if len(missing) == 0 {
		return orphans, nil
	}
	live := map[types.UID]bool{}
	for _, kind := range api.Kinds() {
		err := s.list(ctx, s.Client.Resource(kind.GVR()).Namespace(s.Namespace), api.SelectUndone, func(object *metav1.PartialObjectMetadata) {
			live[object.UID] = true
		})
		if err != nil {
			return orphans, fmt.Errorf("list %s: %w", kind.Resource, err)
		}
	}
	for _, each := range missing {
		if !live[each.owner] {
			orphans = append(orphans, each)
		}
	}
	return orphans, nil
}

// remove removes an orphan. It counts and logs the first removal.
func (s *Sweeper) remove(ctx context.Context, orphan suspect) error {
	remove := s.Remove[orphan.resource]
	if remove == nil {
		remove = func(ctx context.Context, object *metav1.PartialObjectMetadata) error {
			return s.at(orphan.resource).Delete(ctx, object.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &object.UID},
			})
		}
	}
	err := remove(ctx, orphan.PartialObjectMetadata)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // deleted; a conflict means that another object has its name
	case err != nil:
		return fmt.Errorf("delete orphan %s %s: %w", orphan.resource, klog.KObj(orphan), err)
	}
	if !s.counted[orphan.UID] {
		s.Metrics.OrphanRemoved(orphan.resource)
		klog.FromContext(ctx).Info("Deleted orphan", "resource", orphan.resource, "object", klog.KObj(orphan), "owner", orphan.owner, "ownerExists", orphan.done)
	}
	return nil
}

// at returns the client for the objects of a resource. Contents have no namespace.
func (s *Sweeper) at(resource string) metadata.ResourceInterface {
	switch resource {
	case Contents:
		return s.Client.Resource(snapshotResource(resource))
	case Snapshots:
		return s.Client.Resource(snapshotResource(resource)).Namespace(s.Namespace)
	default:
		return s.Client.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(s.Namespace)
	}
}

func snapshotResource(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: resource}
}

// list visits the metadata of all selected objects, page by page.
func (s *Sweeper) list(ctx context.Context, from metadata.ResourceInterface, selector string, visit func(*metav1.PartialObjectMetadata)) error {
	pages := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return from.List(ctx, opts)
	})
	return pages.EachListItem(ctx, metav1.ListOptions{LabelSelector: selector}, func(object runtime.Object) error {
		if known, ok := object.(*metav1.PartialObjectMetadata); ok {
			visit(known)
		}
		return nil
	})
}
