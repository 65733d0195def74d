package config

import (
	"context"
	"fmt"
	"maps"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
	"github.com/lateen-project/lateen/exposer/access"
	"github.com/lateen-project/lateen/exposer/objects"
)

// CopyRight is a permission that agents need to copy the objects that a configuration names. No default role grants
// it.
type CopyRight struct {
	Section  configmap.Section
	Path     string // the field whose names need it
	Verb     string
	Original bool   // for the original, in the namespace of a volume, instead of the copy
	Resource string // secrets or configmaps
	Name     string // empty for create: RBAC cannot restrict create to a name
}

// CopyRights returns all permissions that a configuration needs.
func CopyRights(movers objects.Settings) []CopyRight {
	all := copyRights(configmap.SectionRestorePVC, string(configmap.SectionRestorePVC), movers.RestoreCopies)
	for _, class := range slices.Sorted(maps.Keys(movers.BackupClaims)) {
		all = append(all, copyRights(configmap.SectionBackupPVC, configmap.Join(string(configmap.SectionBackupPVC), class), movers.BackupClaims[class].Copies)...)
	}
	return all
}

func copyRights(section configmap.Section, path string, copies objects.Copies) []CopyRight {
	var all []CopyRight
	for _, of := range []struct {
		field, resource string
		names           []string
	}{{"secretNames", "secrets", copies.SecretNames}, {"configMapNames", "configmaps", copies.ConfigMapNames}} {
		if len(of.names) == 0 {
			continue
		}
		right := CopyRight{Section: section, Path: path + "." + of.field, Resource: of.resource, Verb: "create"}
		all = append(all, right)
		for _, name := range of.names {
			right.Name = name
			for _, right.Verb = range []string{"get", "patch"} {
				all = append(all, right)
			}
			original := right
			original.Verb, original.Original = "get", true
			all = append(all, original)
		}
	}
	return all
}

// Missing returns the Problem of agents without this permission in a namespace.
func (c CopyRight) Missing(namespace string) configmap.Problem {
	what := c.Resource
	if c.Name != "" {
		what += " " + c.Name
	}
	return configmap.Problem{
		Section: c.Section, Path: c.Path, Reason: configmap.Forbidden,
		Message: fmt.Sprintf("agents may not %s %s in namespace %s, so transfers that need the copy fail; grant the right, see %q in docs/configuration.md of Lateen",
			c.Verb, what, namespace, access.CopyRightsTitle),
	}
}

// Attributes returns the permission as the attributes of an access review.
func (c CopyRight) Attributes(namespace string) *authorizationv1.ResourceAttributes {
	return &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: c.Verb, Resource: c.Resource, Name: c.Name}
}

// checkCopies reviews the permissions in Velero's namespace. Only the transfers show which other namespaces have
// originals. If a review fails, checkCopies reports nothing: the transfers report the error.
func (l loader) checkCopies(ctx context.Context, startup *Startup) error {
	reported := map[string]bool{}
	for _, right := range CopyRights(startup.Config.Movers) {
		if right.Original || reported[right.Path] {
			continue
		}
		var allowed bool
		err := l.budget.retry(ctx, func(ctx context.Context) (err error) {
			allowed, err = access.Allowed(ctx, l.client, right.Attributes(l.options.Namespace))
			return err
		})
		if err == nil && !allowed {
			reported[right.Path] = true
			startup.Problems = append(startup.Problems, right.Missing(l.options.Namespace))
		}
	}
	return nil
}
