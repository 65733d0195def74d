package check

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/objects"
)

// Settings are the settings in effect, with the fields of their ConfigMap. A setting without a value is absent.
type Settings struct {
	PriorityClassName         string                         `json:"priorityClassName,omitempty"`
	LoadConcurrency           *LoadConcurrency               `json:"loadConcurrency,omitempty"`
	LoadAffinity              []objects.LoadAffinity         `json:"loadAffinity,omitempty"`
	BackupPVC                 map[string]objects.BackupClaim `json:"backupPVC,omitempty"` // by the storage class of the source volume
	RestorePVC                RestorePVC                     `json:"restorePVC,omitzero"`
	CachePVC                  *CachePVC                      `json:"cachePVC,omitempty"`
	SnapshotMetadata          objects.SnapshotMetadata       `json:"csiSnapshotMetadataServiceConfigs,omitzero"`
	PodResources              map[string]string              `json:"podResources,omitempty"` // quantities by field, such as cpuRequest
	PodLabels                 map[string]string              `json:"podLabels,omitempty"`
	PodAnnotations            map[string]string              `json:"podAnnotations,omitempty"`
	PrivilegedFsBackup        bool                           `json:"privilegedFsBackup,omitempty"`
	Tolerations               []corev1.Toleration            `json:"tolerations,omitempty"`
	CacheLimitMB              int64                          `json:"cacheLimitMB,omitempty"`
	KeepLatestMaintenanceJobs *int                           `json:"keepLatestMaintenanceJobs,omitempty"`
}

// LoadConcurrency limits the concurrent movers.
type LoadConcurrency struct {
	GlobalConfig       int               `json:"globalConfig"` // of a node that no rule selects
	PerNodeConfig      []config.NodeRule `json:"perNodeConfig,omitempty"`
	PrepareQueueLength int               `json:"prepareQueueLength,omitempty"` // absent: by the slots
	Cluster            int               `json:"cluster,omitempty"`            // absent: no limit
	StorageClasses     map[string]int    `json:"storageClasses,omitempty"`
}

// RestorePVC has the settings of DataDownloads.
type RestorePVC struct {
	IgnoreDelayBinding bool `json:"ignoreDelayBinding,omitempty"`
	objects.Copies
}

// CachePVC has the settings of cache volumes.
type CachePVC struct {
	StorageClass          string `json:"storageClass"`
	ResidentThresholdInMB int64  `json:"residentThresholdInMB,omitempty"`
	Size                  string `json:"size,omitempty"` // of maintenance jobs
}

// inEffect returns the settings in effect. For maintenance jobs, they are those for all repositories.
func (r *Result) inEffect() Settings {
	switch r.Document.Kind {
	case BackupRepository:
		return Settings{CacheLimitMB: r.CacheLimit >> config.Mebi}
	case Maintenance:
		jobs := r.Jobs.Jobs
		settings := Settings{
			PriorityClassName: r.Jobs.PriorityClassName, KeepLatestMaintenanceJobs: &jobs.Keep,
			PodResources: podResources(jobs.Resources), PodLabels: jobs.Labels, PodAnnotations: jobs.Annotations,
			Tolerations: jobs.Tolerations,
		}
		if cache := jobs.Cache; cache != nil {
			settings.CachePVC = &CachePVC{StorageClass: cache.StorageClass, Size: cache.Size.String()}
		}
		for _, nodes := range jobs.LoadAffinity {
			settings.LoadAffinity = append(settings.LoadAffinity, objects.LoadAffinity{Nodes: nodes})
		}
		return settings
	}
	movers := r.Config.Movers
	settings := Settings{
		PriorityClassName: r.Config.PriorityClassName,
		LoadConcurrency: &LoadConcurrency{
			GlobalConfig: r.Config.GlobalConcurrency, PerNodeConfig: r.Config.NodeRules, PrepareQueueLength: r.Config.PrepareQueueLength,
			Cluster: r.Config.Cluster, StorageClasses: r.Config.StorageClasses,
		},
		LoadAffinity: movers.LoadAffinity, BackupPVC: movers.BackupClaims,
		RestorePVC:   RestorePVC{IgnoreDelayBinding: movers.IgnoreDelayBinding, Copies: movers.RestoreCopies},
		PodResources: podResources(movers.Resources), PodLabels: movers.Labels, PodAnnotations: movers.Annotations,
		PrivilegedFsBackup: movers.Privileged, Tolerations: movers.Tolerations, SnapshotMetadata: movers.SnapshotMetadata,
	}
	if cache := movers.Cache; cache != nil {
		settings.CachePVC = &CachePVC{StorageClass: cache.StorageClass, ResidentThresholdInMB: cache.Threshold >> config.Mebi}
	}
	return settings
}

// podResources returns the quantities by their fields in a ConfigMap, such as ephemeralStorageLimit.
func podResources(of corev1.ResourceRequirements) map[string]string {
	fields := map[string]string{}
	for suffix, list := range map[string]corev1.ResourceList{"Request": of.Requests, "Limit": of.Limits} {
		for name, amount := range list {
			fields[strings.ReplaceAll(string(name), "-s", "S")+suffix] = amount.String()
		}
	}
	return fields
}
