// Package orphans deletes objects of Lateen's whose transfer is gone. It never deletes one whose owner it has not looked
// for with a request of its own.
package orphans

import (
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

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/metrics"
)

// Sweeper removes what was made for a transfer and has outlived it: an agent may die, or be replaced by
// Velero's, at a bad moment, and snapshots have no owner for Kubernetes to collect them by.
type Sweeper struct {
	Client    metadata.Interface
	Namespace string // Velero's
	// Owner tells, from caches that hold all transfers of the namespace, whether the one with that UID
	// exists, and whether it is done: terminal and without our finalizer.
	Owner func(uid types.UID) (exists, done bool)
	// Served tells whether there are snapshots in this cluster; nil is no.
	Served func() bool
	// ForeignContent tells whether a VolumeSnapshotContent, which has no namespace, is not known to belong to this one:
	// another Velero of the cluster has transfers of its own. Nil is no.
	ForeignContent func(content string) bool
	// Remove removes an orphan of a resource. A resource without one is deleted. It is called again at the
	// next sweep if the orphan is still there.
	Remove map[string]func(ctx context.Context, orphan *metav1.PartialObjectMetadata) error

	MinAge   time.Duration // below which nothing is an orphan; 10 min
	Interval time.Duration // between two sweeps; 10 min
	Clock    clock.Clock
	Metrics  *metrics.Coordination

	counted map[types.UID]bool // orphans that were removed, as long as they are still there
}

// The resources of which there can be orphans.
const (
	orphanPods      = "pods"
	orphanClaims    = "persistentvolumeclaims"
	orphanSnapshots = "volumesnapshots"
	orphanContents  = "volumesnapshotcontents"
)

// Resources are the resources of which there can be orphans, in the order in which they are swept:
// who uses something goes before it.
func Resources() []string {
	return []string{orphanPods, orphanClaims, orphanSnapshots, orphanContents}
}

// Run sweeps at once, and then from time to time until the context ends.
func (o *Sweeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := o.Sweep(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Sweep orphans; trying again", "after", o.interval())
		}
		timer := o.Clock.NewTimer(o.interval())
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

func (o *Sweeper) interval() time.Duration {
	if o.Interval > 0 {
		return o.Interval
	}
	return 10 * time.Minute
}

func (o *Sweeper) minAge() time.Duration {
	if o.MinAge > 0 {
		return o.MinAge
	}
	return 10 * time.Minute
}

// Sweep looks for orphans once and removes them. It is not for two callers at once. What fails does not
// keep it from the rest.
func (o *Sweeper) Sweep(ctx context.Context) error {
	var all []error
	var suspects []suspect
	for _, resource := range Resources() {
		found, err := o.suspects(ctx, resource)
		if err != nil {
			all = append(all, err)
		}
		suspects = append(suspects, found...)
	}
	orphans, err := o.confirm(ctx, suspects)
	if err != nil {
		all = append(all, err)
	}
	there := map[types.UID]bool{}
	for _, orphan := range orphans {
		if err := o.remove(ctx, orphan); err != nil {
			all = append(all, err)
			continue
		}
		there[orphan.UID] = true
	}
	if len(all) > 0 {
		maps.Copy(there, o.counted) // not everything was seen
	}
	o.counted = there
	return errors.Join(all...)
}

// suspect is an object that is an orphan as far as the caches know.
type suspect struct {
	*metav1.PartialObjectMetadata
	resource string
	owner    types.UID
	done     bool // its transfer is there, and is over for good
}

// suspects lists the metadata of our objects of a resource.
func (o *Sweeper) suspects(ctx context.Context, resource string) ([]suspect, error) {
	if snapshot := resource == orphanSnapshots || resource == orphanContents; snapshot && (o.Served == nil || !o.Served()) {
		return nil, nil
	}
	var found []suspect
	selector := objects.LabelMover + "=true," + objects.LabelOwnerUID + ",!" + objects.LabelKept
	err := o.list(ctx, o.at(resource), selector, func(object *metav1.PartialObjectMetadata) {
		owner := types.UID(object.Labels[objects.LabelOwnerUID])
		if controller := metav1.GetControllerOfNoCopy(object); controller != nil && controller.UID != owner {
			return // made by somebody who copied our labels
		}
		if resource == orphanContents && o.ForeignContent != nil && o.ForeignContent(object.Name) {
			return
		}
		exists, done := o.Owner(owner)
		if old := o.Clock.Since(object.CreationTimestamp.Time) > o.minAge(); old && (!exists || done) {
			found = append(found, suspect{object, resource, owner, exists && done})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list %s of movers: %w", resource, err)
	}
	return found, nil
}

// confirm asks the API server for the transfers that the caches do not have: a cache may have lost its
// watch, and what is removed cannot be brought back.
func (o *Sweeper) confirm(ctx context.Context, suspects []suspect) ([]suspect, error) {
	var orphans, missing []suspect
	for _, s := range suspects {
		if s.done {
			orphans = append(orphans, s)
		} else {
			missing = append(missing, s)
		}
	}
	if len(missing) == 0 {
		return orphans, nil
	}
	live := map[types.UID]bool{}
	for _, kind := range transferResources() {
		err := o.list(ctx, o.Client.Resource(kind).Namespace(o.Namespace), "", func(object *metav1.PartialObjectMetadata) {
			live[object.UID] = true
		})
		if err != nil {
			return orphans, fmt.Errorf("list %s: %w", kind.Resource, err)
		}
	}
	for _, s := range missing {
		if !live[s.owner] {
			orphans = append(orphans, s)
		}
	}
	return orphans, nil
}

// remove removes an orphan, and counts and logs it the first time.
func (o *Sweeper) remove(ctx context.Context, orphan suspect) error {
	remove := o.Remove[orphan.resource]
	if remove == nil {
		remove = func(ctx context.Context, object *metav1.PartialObjectMetadata) error {
			return o.at(orphan.resource).Delete(ctx, object.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &object.UID},
			})
		}
	}
	err := remove(ctx, orphan.PartialObjectMetadata)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // it is gone; a conflict is that another one has its name
	case err != nil:
		return fmt.Errorf("remove orphan %s %s: %w", orphan.resource, klog.KObj(orphan), err)
	}
	if !o.counted[orphan.UID] {
		o.Metrics.OrphanRemoved(orphan.resource)
		klog.FromContext(ctx).Info("Removed an orphan", "resource", orphan.resource, "object", klog.KObj(orphan), "owner", orphan.owner, "ownerExists", orphan.done)
	}
	return nil
}

// at is where the objects of a resource are. Contents have no namespace.
func (o *Sweeper) at(resource string) metadata.ResourceInterface {
	switch resource {
	case orphanContents:
		return o.Client.Resource(snapshotResource(resource))
	case orphanSnapshots:
		return o.Client.Resource(snapshotResource(resource)).Namespace(o.Namespace)
	default:
		return o.Client.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(o.Namespace)
	}
}

func snapshotResource(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: resource}
}

// transferResources are the resources of the four kinds (velero-protocol 0).
func transferResources() []schema.GroupVersionResource {
	velero := func(version, resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "velero.io", Version: version, Resource: resource}
	}
	return []schema.GroupVersionResource{
		velero("v1", "podvolumebackups"), velero("v1", "podvolumerestores"),
		velero("v2alpha1", "datauploads"), velero("v2alpha1", "datadownloads"),
	}
}

// list visits the metadata of all objects that are selected, a page at a time.
func (o *Sweeper) list(ctx context.Context, from metadata.ResourceInterface, selector string, visit func(*metav1.PartialObjectMetadata)) error {
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
