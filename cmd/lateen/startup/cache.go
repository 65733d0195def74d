package startup

import (
	"context"
	"fmt"
	"maps"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/access"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// readRepository reads the cache limit of movers.
func (l loader) readRepository(ctx context.Context, startup *Startup) error {
	if l.options.BackupRepositoryConfigMap == "" {
		return nil
	}
	what, found, err := l.configMap(ctx, l.options.BackupRepositoryConfigMap)
	if err != nil {
		return err
	}
	if found == nil {
		startup.Problems = append(startup.Problems, config.NoConfigMap(config.SectionBackupRepository, what.namespace, what.name))
		return nil
	}
	limit, problems := config.ParseRepository(found.Data)
	what.setPaths(problems)
	startup.Problems = append(startup.Problems, problems...)
	if cache := startup.Config.Movers.Cache; cache != nil {
		cache.Limit = limit
	}
	return nil
}

// checkCache drops cache volumes that movers do not support or whose reclaim policy would leave them behind.
func (l loader) checkCache(ctx context.Context, startup *Startup) error {
	cache := startup.Config.Movers.Cache
	if cache == nil {
		return nil
	}
	problem := CacheUnsupported(startup.Templates[corev1.Linux].Image)
	if problem == nil {
		var err error
		if problem, err = l.checkCacheClass(ctx, cache.StorageClass); err != nil {
			return err
		}
	}
	if problem != nil {
		startup.Problems = append(startup.Problems, *problem)
		startup.Config.Movers.Cache = nil
	}
	return nil
}

// checkCacheClass reads a storage class and returns the Problem that forbids its use for cache volumes; nil if there
// is none.
func (l loader) checkCacheClass(ctx context.Context, name string) (*config.Problem, error) {
	what := object{group: "storage.k8s.io", resource: "storageclasses", name: name}
	class, err := get(ctx, l, what, l.client.StorageV1().StorageClasses().Get)
	switch {
	case apierrors.IsForbidden(err):
		return &config.Problem{Section: config.SectionCachePVC, Path: cacheClassPath, Reason: config.Forbidden, Message: err.Error()}, nil
	case err != nil:
		return nil, err
	default:
		return UnusableCacheClass(name, class), nil
	}
}

const cacheClassPath = string(config.SectionCachePVC) + ".storageClass"

// UnusableCacheClass returns the Problem that forbids the use of a storage class for cache volumes (velero-protocol
// 5.3); nil if there is none. A nil class does not exist.
func UnusableCacheClass(name string, class *storagev1.StorageClass) *config.Problem {
	problem := config.Problem{Section: config.SectionCachePVC, Path: cacheClassPath}
	switch {
	case class == nil:
		problem.Reason = config.Missing
		problem.Message = fmt.Sprintf("storage class %s does not exist; create it or name another", name)
	case class.ReclaimPolicy != nil && *class.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		problem.Reason = config.InvalidValue
		problem.Message = fmt.Sprintf("storage class %s has reclaimPolicy %s, which leaves cache volumes behind; name a class with Delete", name, *class.ReclaimPolicy)
	default:
		return nil
	}
	return &problem
}

// CacheUnsupported returns a Problem if the restore movers do not know --cache-volume-path, which Velero 1.18
// introduced. An image tag that is no version of Velero counts as supported.
func CacheUnsupported(image string) *config.Problem {
	_, tag, _ := api.SplitImage(image)
	release, err := version.ParseGeneric(tag)
	if err != nil || release.Major() != 1 || release.Minor() >= 18 {
		return nil
	}
	return &config.Problem{Section: config.SectionCachePVC, Path: string(config.SectionCachePVC), Reason: config.InvalidValue, Message: fmt.Sprintf(
		"restore movers of image %s do not support cache volumes; use Velero 1.18 or newer, or remove cachePVC", image)}
}

// CopyRight is a permission that agents need to copy the objects that a configuration names. No default role grants
// it.
type CopyRight struct {
	Section  config.Section
	Path     string // the field whose names need it
	Verb     string
	Original bool   // for the original, in the namespace of a volume, instead of the copy
	Resource string // secrets or configmaps
	Name     string // empty for create: RBAC cannot restrict create to a name
}

// CopyRights returns all permissions that a configuration needs.
func CopyRights(movers objects.Settings) []CopyRight {
	all := copyRights(config.SectionRestorePVC, string(config.SectionRestorePVC), movers.RestoreCopies)
	for _, class := range slices.Sorted(maps.Keys(movers.BackupClaims)) {
		all = append(all, copyRights(config.SectionBackupPVC, config.Join(string(config.SectionBackupPVC), class), movers.BackupClaims[class].Copies)...)
	}
	return all
}

func copyRights(section config.Section, path string, copies objects.Copies) []CopyRight {
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
func (c CopyRight) Missing(namespace string) config.Problem {
	what := c.Resource
	if c.Name != "" {
		what += " " + c.Name
	}
	return config.Problem{
		Section: c.Section, Path: c.Path, Reason: config.Forbidden,
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

// TestedVersions returns the minor versions of Velero whose servers and movers the tests run, oldest first.
func TestedVersions() []string { return []string{"1.17", "1.18"} }

// TestedKubernetes returns the minor versions of Kubernetes whose control planes the tests run, oldest first. Those between
// them count as tested.
func TestedKubernetes() []string { return []string{"1.34", "1.36", "1.37"} }

// UntestedVelero describes an image of a minor version of Velero that was not tested. It is empty for a tested
// version, and for a tag that is no version.
func UntestedVelero(image string) string {
	_, tag, _ := api.SplitImage(image)
	tried := TestedVersions()
	if tag == "main" { // the tag of Velero's development branch
		return fmt.Sprintf("Velero's development branch (%s) is newer than %s, the newest version tested with Lateen", image, tried[len(tried)-1])
	}
	return untried("Velero", tag, tried)
}

// UntestedKubernetes describes a minor version of Kubernetes that was not tested, from the gitVersion of an API server. It
// is empty for a tested version, and for what is no version.
func UntestedKubernetes(gitVersion string) string {
	return untried("Kubernetes", gitVersion, TestedKubernetes())
}

// untried compares a version with the minor versions that were tested, oldest first.
func untried(product, text string, tried []string) string {
	found, err := version.ParseGeneric(text)
	if err != nil {
		return ""
	}
	oldest, newest := version.MustParseGeneric(tried[0]), version.MustParseGeneric(tried[len(tried)-1])
	minor := version.MajorMinor(found.Major(), found.Minor())
	switch {
	case newest.LessThan(minor):
		return fmt.Sprintf("%s %s is newer than %s, the newest version tested with Lateen", product, text, newest)
	case minor.LessThan(oldest):
		return fmt.Sprintf("%s %s is older than %s, the oldest version tested with Lateen", product, text, oldest)
	}
	return ""
}
