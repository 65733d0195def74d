package status

import (
	"context"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ObserveOne reads a cluster once, with the additional objects about one reference. The error means that no resource
// could be read.
func (c *Clients) ObserveOne(ctx context.Context, namespace string, of Reference, now time.Time) (*Snapshot, error) {
	objects, unreadable, err := list(ctx, c.sources(namespace))
	if err != nil {
		return nil, err
	}
	first := Gather(namespace, now, objects, slices.Clone(unreadable))
	var further []source
	for _, w := range first.dependencies() {
		further = append(further, c.dependencies(w))
	}
	if of != (Reference{}) {
		further = append(further, c.about(first, of)...)
	}
	more, also, _ := list(ctx, further) // all of these may be unreadable
	return Gather(namespace, now, append(objects, more...), append(unreadable, also...)), nil
}

// about returns the sources for one reference: its Events, and those of its objects, which share its name.
func (c *Clients) about(s *Snapshot, of Reference) []source {
	sources := []source{c.eventsOf(s.namespace, of.Name)}
	if of.Kind == repositoryKind {
		return append(sources, from(locationsName, s.namespace, &velerov1.BackupStorageLocation{}, c.velero.BackupStorageLocations(s.namespace), metav1.ListOptions{}))
	}
	one, err := s.find(of)
	if err != nil {
		return nil // Timeline returns this error later
	}
	for _, claim := range s.claimsOf(one) {
		if claim.Name != of.Name {
			sources = append(sources, c.eventsOf(s.namespace, claim.Name))
		}
	}
	switch source := one.move.Source; {
	case source.Snapshot != nil:
		if !slices.Contains(s.dependencies(), dependency{snapshotsName, source.Snapshot.Namespace}) {
			sources = append(sources, c.dependencies(dependency{snapshotsName, source.Snapshot.Namespace}), c.dependencies(dependency{snapshotsName, s.namespace}))
		}
		sources = append(sources, c.eventsOf(source.Snapshot.Namespace, source.Snapshot.Snapshot))
	case source.Target != nil:
		if !slices.Contains(s.dependencies(), dependency{claimsName, source.Target.Namespace}) {
			sources = append(sources, c.dependencies(dependency{claimsName, source.Target.Namespace}))
		}
		sources = append(sources, c.eventsOf(source.Target.Namespace, source.Target.Claim))
	}
	return sources
}

func (c *Clients) eventsOf(namespace, name string) source {
	return from(eventsName, namespace, &corev1.Event{}, c.kube.CoreV1().Events(namespace), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
}
