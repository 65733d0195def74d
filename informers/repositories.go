package informers

import (
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/kubernetes"
)

// RepositoryCaches holds the informers of an agent that coordinates, for the maintenance of repositories:
//
//	Repositories   Velero's namespace
//	Locations      Velero's namespace
//	Jobs           Velero's namespace, by label: all maintenance jobs, those of Velero's server too
//	TerminalPods   the pods of these jobs that have terminated
type RepositoryCaches struct {
	group
	Repositories *Informer[*velerov1.BackupRepository]
	Locations    *Informer[*velerov1.BackupStorageLocation]
	Jobs         *Informer[*batchv1.Job]
	TerminalPods *Informer[*corev1.Pod]
}

// terminalPods selects pods in a terminal phase. A pod in phase Unknown may still run.
const terminalPods = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"

// NewRepositoryCaches returns the informers of one term; Run starts them. jobLabel is the label key of maintenance
// jobs, with any value.
func NewRepositoryCaches(kube kubernetes.Interface, velero *Clientset, namespace, jobLabel string) (*RepositoryCaches, error) {
	b := group{}
	created := &RepositoryCaches{
		Repositories: add(&b, "backuprepositories", velero.BackupRepositories(namespace), &velerov1.BackupRepository{}, Scope{}, noTrim[*velerov1.BackupRepository]),
		Locations:    add(&b, "backupstoragelocations", velero.BackupStorageLocations(namespace), &velerov1.BackupStorageLocation{}, Scope{}, noTrim[*velerov1.BackupStorageLocation]),
		Jobs:         add(&b, "maintenance jobs", kube.BatchV1().Jobs(namespace), &batchv1.Job{}, Scope{Labels: jobLabel}, noTrim[*batchv1.Job]),
		TerminalPods: add(&b, "terminated pods of maintenance jobs", kube.CoreV1().Pods(namespace), &corev1.Pod{}, Scope{Labels: jobLabel, Fields: terminalPods}, trimToOwner),
	}
	created.group = b
	return created, b.err
}

// Typed clients for the resources of one kind in one namespace.
type (
	// BackupRepositories is a client for BackupRepositories.
	BackupRepositories = gentype.ClientWithList[*velerov1.BackupRepository, *velerov1.BackupRepositoryList]
	// BackupStorageLocations is a client for BackupStorageLocations.
	BackupStorageLocations = gentype.ClientWithList[*velerov1.BackupStorageLocation, *velerov1.BackupStorageLocationList]
)

// BackupRepositories returns the client for one namespace.
func (c *Clientset) BackupRepositories(namespace string) *BackupRepositories {
	return gentype.NewClientWithList(
		"backuprepositories", c.v1, c.codecs, namespace,
		func() *velerov1.BackupRepository { return &velerov1.BackupRepository{} },
		func() *velerov1.BackupRepositoryList { return &velerov1.BackupRepositoryList{} },
	)
}

// BackupStorageLocations returns the client for one namespace.
func (c *Clientset) BackupStorageLocations(namespace string) *BackupStorageLocations {
	return gentype.NewClientWithList(
		"backupstoragelocations", c.v1, c.codecs, namespace,
		func() *velerov1.BackupStorageLocation { return &velerov1.BackupStorageLocation{} },
		func() *velerov1.BackupStorageLocationList { return &velerov1.BackupStorageLocationList{} },
	)
}
