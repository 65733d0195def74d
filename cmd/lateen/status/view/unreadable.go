package view

// Resources as RBAC names them, for Unreadable.
const (
	ResourceLocations       = "backupstoragelocations.velero.io"
	ResourceRepositories    = "backuprepositories.velero.io"
	ResourcePods            = "pods"
	ResourceClaims          = "persistentvolumeclaims"
	ResourceSnapshots       = "volumesnapshots.snapshot.storage.k8s.io"
	ResourceContents        = "volumesnapshotcontents.snapshot.storage.k8s.io"
	ResourceStorageClasses  = "storageclasses.storage.k8s.io"
	ResourceEvents          = "events"
	ResourceLeases          = "leases.coordination.k8s.io"
	ResourceNodes           = "nodes"
	ResourcePriorityClasses = "priorityclasses.scheduling.k8s.io"
	ResourceConfigMaps      = "configmaps"
	ResourceDaemonSets      = "daemonsets.apps"
)

// Unreadable is a resource that could not be read, so the report omits it.
type Unreadable struct {
	Resource  string `json:"resource"`            // as in RBAC, with its group after a dot
	Namespace string `json:"namespace,omitempty"` // empty: in the whole cluster
	Message   string `json:"message"`
}

func (u Unreadable) String() string {
	if u.Namespace == "" {
		return u.Resource + ": " + u.Message
	}
	return u.Resource + " in " + u.Namespace + ": " + u.Message
}
