package config

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
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
		startup.Problems = append(startup.Problems, configmap.NoRepository(what.namespace, what.name))
		return nil
	}
	limit, problems := configmap.ParseRepository(found.Data)
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
func (l loader) checkCacheClass(ctx context.Context, name string) (*configmap.Problem, error) {
	what := object{group: "storage.k8s.io", resource: "storageclasses", name: name}
	class, err := get(ctx, l, what, l.client.StorageV1().StorageClasses().Get)
	switch {
	case apierrors.IsForbidden(err):
		return &configmap.Problem{Section: configmap.SectionCachePVC, Path: cacheClassPath, Reason: configmap.Forbidden, Message: err.Error()}, nil
	case err != nil:
		return nil, err
	default:
		return UnusableCacheClass(name, class), nil
	}
}

const cacheClassPath = string(configmap.SectionCachePVC) + ".storageClass"

// UnusableCacheClass returns the Problem that forbids the use of a storage class for cache volumes (velero-protocol
// 5.3); nil if there is none. A nil class does not exist.
func UnusableCacheClass(name string, class *storagev1.StorageClass) *configmap.Problem {
	problem := configmap.Problem{Section: configmap.SectionCachePVC, Path: cacheClassPath}
	switch {
	case class == nil:
		problem.Reason = configmap.Missing
		problem.Message = fmt.Sprintf("storage class %s does not exist; create it or name another", name)
	case class.ReclaimPolicy != nil && *class.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		problem.Reason = configmap.InvalidValue
		problem.Message = fmt.Sprintf("storage class %s has reclaimPolicy %s, which leaves cache volumes behind; name a class with Delete", name, *class.ReclaimPolicy)
	default:
		return nil
	}
	return &problem
}

// CacheUnsupported returns a Problem if the restore movers do not know --cache-volume-path, which Velero 1.18
// introduced. An image tag that is no version of Velero counts as supported.
func CacheUnsupported(image string) *configmap.Problem {
	release, err := version.ParseGeneric(imageTag(image))
	if err != nil || release.Major() != 1 || release.Minor() >= 18 {
		return nil
	}
	return &configmap.Problem{Section: configmap.SectionCachePVC, Path: string(configmap.SectionCachePVC), Reason: configmap.InvalidValue, Message: fmt.Sprintf(
		"restore movers of image %s do not support cache volumes; use Velero 1.18 or newer, or remove cachePVC", image)}
}
