// Package diagnose evaluates one snapshot of a cluster: what each transfer waits for, why it failed, and what to do. It
// sends no request and reads no clock.
package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/handover"
	"github.com/lateen-project/lateen/exposer/objects"
)

// Snapshot is the state of a cluster at one time, as far as it could be read.
type Snapshot struct {
	now        time.Time
	namespace  string // of Velero
	unreadable []view.Unreadable

	transfers    []*subject
	repositories []*velerov1.BackupRepository
	locations    []*velerov1.BackupStorageLocation
	jobs         []*batchv1.Job
	events       []*corev1.Event
	lease        *coordinationv1.Lease
	agents       *appsv1.DaemonSet
	server       *appsv1.Deployment
	pods         map[string]*corev1.Pod // this map and the next ones by namespace/name
	claims       map[string]*corev1.PersistentVolumeClaim
	configMaps   map[string]*corev1.ConfigMap
	snapshots    map[string]*snapshotv1.VolumeSnapshot
	contents     map[string]*snapshotv1.VolumeSnapshotContent
	nodes        map[string]*corev1.Node
	classes      map[string]*storagev1.StorageClass
	priorities   map[string]*schedulingv1.PriorityClass
}

// Gather builds a Snapshot from the objects that were read. It ignores objects of other types.
func Gather(namespace string, now time.Time, objects []runtime.Object, unreadable []view.Unreadable) *Snapshot {
	s := &Snapshot{
		now: now, namespace: namespace, unreadable: unreadable,
		pods: map[string]*corev1.Pod{}, claims: map[string]*corev1.PersistentVolumeClaim{}, configMaps: map[string]*corev1.ConfigMap{},
		snapshots: map[string]*snapshotv1.VolumeSnapshot{}, contents: map[string]*snapshotv1.VolumeSnapshotContent{},
		nodes: map[string]*corev1.Node{}, classes: map[string]*storagev1.StorageClass{}, priorities: map[string]*schedulingv1.PriorityClass{},
	}
	for _, object := range objects {
		s.take(object)
	}
	slices.SortFunc(s.transfers, func(a, b *subject) int {
		if older := a.state.CreatedAt.Compare(b.state.CreatedAt); older != 0 {
			return older
		}
		return strings.Compare(a.meta.GetName()+string(a.meta.GetUID()), b.meta.GetName()+string(b.meta.GetUID()))
	})
	slices.SortFunc(s.repositories, func(a, b *velerov1.BackupRepository) int { return strings.Compare(a.Name, b.Name) })
	slices.SortStableFunc(s.events, func(a, b *corev1.Event) int { return lastSeen(a).Compare(lastSeen(b)) })
	slices.SortFunc(s.unreadable, func(a, b view.Unreadable) int { return strings.Compare(a.Resource+a.Namespace, b.Resource+b.Namespace) })
	return s
}

func (s *Snapshot) take(object runtime.Object) {
	if one := asTransfer(object); one != nil {
		s.transfers = append(s.transfers, one)
	}
	switch o := object.(type) {
	case *velerov1.BackupRepository:
		s.repositories = append(s.repositories, o)
	case *velerov1.BackupStorageLocation:
		s.locations = append(s.locations, o)
	case *batchv1.Job:
		s.jobs = append(s.jobs, o)
	case *corev1.Event:
		s.events = append(s.events, o)
	case *coordinationv1.Lease:
		s.lease = o
	case *appsv1.DaemonSet:
		s.agents = o
	case *appsv1.Deployment:
		s.server = o
	case *corev1.Pod:
		s.pods[keyOf(o)] = o
	case *corev1.PersistentVolumeClaim:
		s.claims[keyOf(o)] = o
	case *corev1.ConfigMap:
		s.configMaps[o.Name] = o
	case *snapshotv1.VolumeSnapshot:
		s.snapshots[keyOf(o)] = o
	case *snapshotv1.VolumeSnapshotContent:
		s.contents[o.Name] = o
	case *corev1.Node:
		s.nodes[o.Name] = o
	case *storagev1.StorageClass:
		s.classes[o.Name] = o
	case *schedulingv1.PriorityClass:
		s.priorities[o.Name] = o
	}
}

func keyOf(object metav1.Object) string { return object.GetNamespace() + "/" + object.GetName() }

// sees reports whether a resource could be read in a namespace.
func (s *Snapshot) sees(resource, namespace string) bool {
	return !slices.ContainsFunc(s.unreadable, func(u view.Unreadable) bool {
		return u.Resource == resource && (u.Namespace == "" || u.Namespace == namespace)
	})
}

// mover returns the mover pod that belongs to this resource by UID; nil if there is none.
func (s *Snapshot) mover(of *subject) *corev1.Pod {
	if pod := s.pods[of.key()]; pod != nil && objects.OwnedBy(pod, of.meta.GetUID()) {
		return pod
	}
	return nil
}

// claimsOf returns the claims created for a transfer.
func (s *Snapshot) claimsOf(of *subject) []*corev1.PersistentVolumeClaim {
	var found []*corev1.PersistentVolumeClaim
	for _, name := range objects.ClaimNames(of.move) {
		if claim := s.claims[of.meta.GetNamespace()+"/"+name]; claim != nil && objects.OwnedBy(claim, of.meta.GetUID()) {
			found = append(found, claim)
		}
	}
	return found
}

// handover returns the progress of a DataUpload's snapshot on its way to Velero's namespace. It is nil for other
// kinds, and if snapshots could not be read.
func (s *Snapshot) handover(of *subject) *handover.State {
	source := of.move.Source.Snapshot
	if source == nil || !s.sees(view.ResourceSnapshots, source.Namespace) || !s.sees(view.ResourceSnapshots, s.namespace) || !s.sees(view.ResourceContents, "") {
		return nil
	}
	h := &handover.State{
		Namespace: of.meta.GetNamespace(), Name: of.meta.GetName(), UID: of.meta.GetUID(),
		Source: types.NamespacedName{Namespace: source.Namespace, Name: source.Snapshot}, Verified: true,
	}
	h.Backup = handover.SnapshotPair{Snapshot: s.snapshots[of.key()], Content: s.contents[h.Name]}
	h.Original.Snapshot = s.snapshots[h.Source.String()]
	h.Original.Content = s.contents[h.SourceContent()]
	return h
}

// warning returns the newest Warning about an object from any component; empty if there is none.
func (s *Snapshot) warning(about types.UID) string {
	for _, event := range slices.Backward(s.events) {
		if event.InvolvedObject.UID == about && event.Type == corev1.EventTypeWarning {
			return strings.TrimSuffix(fmt.Sprintf("%s: %s", event.Reason, view.OneLine(event.Message)), ": ")
		}
	}
	return ""
}

// lastSeen returns the last time of an Event. Recorders of events.k8s.io write a series, or only one time.
func lastSeen(event *corev1.Event) time.Time {
	seen := event.LastTimestamp.Time
	if event.EventTime.After(seen) {
		seen = event.EventTime.Time
	}
	if event.Series != nil && event.Series.LastObservedTime.After(seen) {
		seen = event.Series.LastObservedTime.Time
	}
	if seen.IsZero() {
		return event.CreationTimestamp.Time
	}
	return seen
}

// movers returns the mover pods of this installation that are not terminal.
func (s *Snapshot) movers() []*corev1.Pod {
	var found []*corev1.Pod
	for _, one := range s.transfers {
		if mover := s.mover(one); mover != nil && !slices.Contains([]objects.Condition{objects.Succeeded, objects.Failed, objects.Lost}, objects.ReadPod(mover).Condition) {
			found = append(found, mover)
		}
	}
	return found
}
