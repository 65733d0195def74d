package diagnose

import (
	"cmp"
	"slices"

	"github.com/lateen-project/lateen/cmd/lateen/status/view"
)

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
	source := s.move.Source
	switch {
	case s.state.Phase.IsNew() && source.PodVolume != nil && s.move.Restores:
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
	switch source := one.move.Source; {
	case source.Snapshot != nil:
		about = append(about, Dependency{Resource: view.ResourceSnapshots, Namespace: source.Snapshot.Namespace}, Dependency{Resource: view.ResourceSnapshots, Namespace: s.namespace},
			events(source.Snapshot.Namespace, source.Snapshot.Snapshot))
	case source.Target != nil:
		about = append(about, Dependency{Resource: view.ResourceClaims, Namespace: source.Target.Namespace}, events(source.Target.Namespace, source.Target.Claim))
	}
	known := s.Dependencies()
	return slices.DeleteFunc(about, func(d Dependency) bool { return slices.Contains(known, d) })
}
