// Package diagnose evaluates one snapshot of a cluster: what each transfer waits for, why it failed, and what to do. It
// sends no request and reads no clock.
package diagnose

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/spf13/pflag"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/check"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/handover"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/transfer"
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
	daemonSet    *appsv1.DaemonSet // of the agents
	deployments  []appsv1.Deployment

	// Maps of namespaced objects have the key namespace/name; configMaps, and cluster-scoped ones, the name.
	pods       map[string]*corev1.Pod
	claims     map[string]*corev1.PersistentVolumeClaim
	configMaps map[string]*corev1.ConfigMap
	snapshots  map[string]*snapshotv1.VolumeSnapshot
	contents   map[string]*snapshotv1.VolumeSnapshotContent
	nodes      map[string]*corev1.Node
	classes    map[string]*storagev1.StorageClass
	priorities map[string]*schedulingv1.PriorityClass
}

// Gather builds a Snapshot from the objects that were read. It ignores objects of other types.
func Gather(namespace string, now time.Time, read []runtime.Object, unreadable []view.Unreadable) *Snapshot {
	s := &Snapshot{
		now: now, namespace: namespace, unreadable: unreadable,
		pods: map[string]*corev1.Pod{}, claims: map[string]*corev1.PersistentVolumeClaim{}, configMaps: map[string]*corev1.ConfigMap{},
		snapshots: map[string]*snapshotv1.VolumeSnapshot{}, contents: map[string]*snapshotv1.VolumeSnapshotContent{},
		nodes: map[string]*corev1.Node{}, classes: map[string]*storagev1.StorageClass{}, priorities: map[string]*schedulingv1.PriorityClass{},
	}
	for _, object := range read {
		s.take(object)
	}
	slices.SortFunc(s.transfers, func(a, b *subject) int {
		if older := a.state.CreatedAt.Compare(b.state.CreatedAt); older != 0 {
			return older
		}
		return strings.Compare(a.meta.GetName()+string(a.meta.GetUID()), b.meta.GetName()+string(b.meta.GetUID()))
	})
	slices.SortFunc(s.repositories, func(a, b *velerov1.BackupRepository) int { return strings.Compare(a.Name, b.Name) })
	slices.SortStableFunc(s.events, func(a, b *corev1.Event) int { return objects.LastSeen(a).Compare(objects.LastSeen(b)) })
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
		s.daemonSet = o
	case *appsv1.Deployment:
		s.deployments = append(s.deployments, *o)
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

// Installed returns an error if the namespace was read and has no Velero: lists in a namespace that does not exist succeed.
func (s *Snapshot) Installed() error {
	if s.daemonSet != nil || len(s.deployments) > 0 || len(s.transfers) > 0 || len(s.unreadable) > 0 {
		return nil
	}
	return fmt.Errorf("there is no Velero in namespace %s: name its namespace with -n", s.namespace)
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
	for _, name := range objects.ClaimNames(of.spec) {
		if claim := s.claims[of.meta.GetNamespace()+"/"+name]; claim != nil && objects.OwnedBy(claim, of.meta.GetUID()) {
			found = append(found, claim)
		}
	}
	return found
}

// handover returns the progress of a DataUpload's snapshot on its way to Velero's namespace. It is nil for other
// kinds, and if snapshots could not be read.
func (s *Snapshot) handover(of *subject) *handover.State {
	source := of.spec.Source.Snapshot
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

// subject is a transfer with the values that its evaluation needs.
type subject struct {
	kind  string // as in the API
	meta  metav1.Object
	state transfer.State
	spec  objects.MoverSpec
}

func (s *subject) key() string { return s.meta.GetNamespace() + "/" + s.meta.GetName() }

// asTransfer returns a custom resource of any kind of transfer; nil for other objects.
func asTransfer(object runtime.Object) *subject {
	switch o := object.(type) {
	case *velerov1.PodVolumeBackup:
		return subjectOf(transfer.PodVolumeBackup(), o)
	case *velerov1.PodVolumeRestore:
		return subjectOf(transfer.PodVolumeRestore(), o)
	case *velerov2alpha1.DataUpload:
		return subjectOf(transfer.DataUpload(), o)
	case *velerov2alpha1.DataDownload:
		return subjectOf(transfer.DataDownload(), o)
	}
	return nil
}

func subjectOf[T transfer.Object](kind transfer.Kind[T], object T) *subject {
	return &subject{kind: kind.GVK.Kind, meta: object, state: kind.Get(object), spec: kind.MoverSpec(object, 0)}
}

// volume names the volume of a transfer for people.
func (s *subject) volume() string {
	switch source := s.spec.Source; {
	case source.PodVolume != nil:
		return source.PodVolume.Pod.Namespace + "/" + source.PodVolume.Pod.Name + "/" + source.PodVolume.Volume
	case source.Snapshot != nil:
		return source.Snapshot.Namespace + "/" + source.Snapshot.Claim
	case source.Target != nil:
		return source.Target.Namespace + "/" + source.Target.Claim
	}
	return ""
}

// options returns the flags of the agents from their DaemonSet; the defaults without one.
func (s *Snapshot) options() startup.Options {
	var options startup.Options
	flags := pflag.NewFlagSet("node-agent", pflag.ContinueOnError)
	options.AddFlags(flags)
	if s.daemonSet == nil {
		return options
	}
	installation := check.Installation{Namespace: s.namespace, Agents: &s.daemonSet.Spec.Template}
	flags.VisitAll(func(flag *pflag.Flag) {
		value, before := installation.Flag("--"+flag.Name), flag.Value.String()
		if value == "" {
			return
		}
		if err := flag.Value.Set(value); err != nil {
			// an agent with such a flag does not start; restoring the previous value cannot fail
			_ = flag.Value.Set(before)
		}
	})
	return options
}

// Dependency is a resource in a namespace that is read only because a transfer may wait for it, or for one reference.
type Dependency struct {
	Resource  string // as RBAC names it
	Namespace string // empty: cluster-scoped
	Name      string // of the object that Events are about; empty for other resources
}

// Dependencies returns the dependencies of all transfers in a fixed order.
func (s *Snapshot) Dependencies() []Dependency {
	all := map[Dependency]bool{}
	for _, one := range s.transfers {
		for _, w := range one.dependencies() {
			// all pods of Velero's namespace are read anyway
			all[w] = w.Namespace != s.namespace || w.Resource != view.ResourcePods
		}
	}
	var wanted []Dependency
	for w, more := range all {
		if more {
			wanted = append(wanted, w)
		}
	}
	slices.SortFunc(wanted, func(a, b Dependency) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Namespace, b.Namespace))
	})
	return wanted
}

// dependencies returns what this transfer may wait for outside of the regular sources.
func (s *subject) dependencies() []Dependency {
	source := s.spec.Source
	switch {
	case s.state.Phase.IsNew() && source.PodVolume != nil && s.spec.Restores:
		return []Dependency{{Resource: view.ResourcePods, Namespace: source.PodVolume.Pod.Namespace}}
	case s.state.Phase.IsNew() && source.Target != nil:
		return []Dependency{{Resource: view.ResourceClaims, Namespace: source.Target.Namespace}, {Resource: view.ResourceStorageClasses}}
	case source.Snapshot != nil && (s.state.Phase.NeedsMover() || s.state.Phase.Terminal() && s.state.Finalizer):
		return []Dependency{{Resource: view.ResourceSnapshots, Namespace: source.Snapshot.Namespace}, {Resource: view.ResourceSnapshots, Namespace: s.meta.GetNamespace()}, {Resource: view.ResourceContents}}
	}
	return nil
}

// About returns what is read for one reference only: the Events about it and about its objects, which share its name.
func (s *Snapshot) About(of Reference) []Dependency {
	events := func(namespace, name string) Dependency {
		return Dependency{Resource: view.ResourceEvents, Namespace: namespace, Name: name}
	}
	about := []Dependency{events(s.namespace, of.Name)}
	if of.Kind == repositoryKind {
		return append(about, Dependency{Resource: view.ResourceLocations, Namespace: s.namespace})
	}
	one, err := s.find(of)
	if err != nil {
		return nil // Timeline returns this error later
	}
	for _, claim := range s.claimsOf(one) {
		if claim.Name != of.Name {
			about = append(about, events(s.namespace, claim.Name))
		}
	}
	switch source := one.spec.Source; {
	case source.Snapshot != nil:
		about = append(about, Dependency{Resource: view.ResourceSnapshots, Namespace: source.Snapshot.Namespace}, Dependency{Resource: view.ResourceSnapshots, Namespace: s.namespace},
			events(source.Snapshot.Namespace, source.Snapshot.Snapshot))
	case source.Target != nil:
		about = append(about, Dependency{Resource: view.ResourceClaims, Namespace: source.Target.Namespace}, events(source.Target.Namespace, source.Target.Claim))
	}
	known := s.Dependencies()
	return slices.DeleteFunc(about, func(d Dependency) bool { return slices.Contains(known, d) })
}

// Reference names the object to explain.
type Reference struct{ Kind, Name string } // the kind as in the API

// APIKind returns the kind with its resource.
func (r Reference) APIKind() api.Kind {
	all := Explained()
	return all[slices.IndexFunc(all, func(one api.Kind) bool { return one.GVK.Kind == r.Kind })]
}

// repositoryKind is the only kind that can be explained besides transfers.
const repositoryKind = "BackupRepository"

// Explained returns the kinds that can be explained.
func Explained() []api.Kind {
	return append(api.Kinds(), api.Kind{
		GVK: velerov1.SchemeGroupVersion.WithKind(repositoryKind), Name: "backuprepository", Resource: "backuprepositories", ShortName: "br",
	})
}

// ParseReference parses KIND/NAME. Like kubectl, it accepts a kind that is short, plural, or followed by its group.
// The error shows the expected form or the known kinds.
func ParseReference(text string) (Reference, error) {
	word, name, found := strings.Cut(text, "/")
	if !found || name == "" || strings.Contains(name, "/") {
		return Reference{}, fmt.Errorf("%q is not KIND/NAME: use a form such as pvb/nightly-x7k2p", text)
	}
	word, _, _ = strings.Cut(strings.ToLower(word), ".")
	var known []string
	for _, one := range Explained() {
		if slices.Contains([]string{one.ShortName, one.Name, one.Resource}, word) {
			return Reference{one.GVK.Kind, name}, nil
		}
		known = append(known, fmt.Sprintf("%s (%s)", one.Name, one.ShortName))
	}
	return Reference{}, fmt.Errorf("kind %q is unknown: use %s", word, strings.Join(known, ", "))
}

// find returns the transfer with this reference. The error lists similar names.
func (s *Snapshot) find(of Reference) (*subject, error) {
	var names []Reference
	for _, one := range s.transfers {
		if one.kind == of.Kind && one.meta.GetName() == of.Name {
			return one, nil
		}
		names = append(names, Reference{one.kind, one.meta.GetName()})
	}
	return nil, s.unknown(of, names)
}

// unknown returns the error for a missing object: similar names, or why the objects could not be read.
func (s *Snapshot) unknown(of Reference, there []Reference) error {
	resource := of.APIKind().CRD()
	for _, one := range s.unreadable {
		if one.Resource == resource {
			return fmt.Errorf("find %s %s/%s: %s", of.Kind, s.namespace, of.Name, one.Message)
		}
	}
	description := fmt.Sprintf("%s %s does not exist in namespace %s", of.Kind, of.Name, s.namespace)
	if near := similar(of, there); len(near) > 0 {
		return errors.New(description + "; similar names: " + strings.Join(near, ", "))
	}
	same := 0
	for _, one := range there {
		if one.Kind == of.Kind {
			same++
		}
	}
	return fmt.Errorf("%s; found %s of that kind and no similar name; use -n for another namespace", description, view.Counted(same, "object"))
}

// maxSimilar bounds how many names an error suggests.
const maxSimilar = 5

// similar returns the references whose names share a prefix and a suffix, the best match first.
func similar(to Reference, there []Reference) []string {
	type candidate struct {
		text  string
		score int
	}
	var found []candidate
	for _, one := range there {
		score := affixScore(one.Name, to.Name)
		if one.Kind == to.Kind {
			score++
		}
		if 2*score >= len(to.Name) {
			found = append(found, candidate{strings.ToLower(one.Kind) + "/" + one.Name, score})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(b.score, a.score) })
	var description []string
	for _, one := range found[:min(len(found), maxSimilar)] {
		description = append(description, one.text)
	}
	return description
}

// affixScore returns the length of the common prefix and suffix of two names, in bytes.
func affixScore(a, b string) int {
	prefix := 0
	for prefix < min(len(a), len(b)) && a[prefix] == b[prefix] {
		prefix++
	}
	suffix := 0
	for suffix < min(len(a), len(b))-prefix && a[len(a)-1-suffix] == b[len(b)-1-suffix] {
		suffix++
	}
	return prefix + suffix
}
