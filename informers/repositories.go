package informers

import (
	"context"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/client-go/kubernetes"
)

// RepositoryCaches holds the informers of an agent that coordinates, for the maintenance of repositories:
//
//	Repositories   Velero's namespace
//	Locations      Velero's namespace
//	Jobs           Velero's namespace, by label: all maintenance jobs, those of Velero's server too
type RepositoryCaches struct {
	Repositories *Informer[*velerov1.BackupRepository]
	Locations    *Informer[*velerov1.BackupStorageLocation]
	Jobs         *Informer[*batchv1.Job]

	all []informer
}

// NewRepositoryCaches returns the informers of one term; Run starts them. jobLabel is the label key of maintenance
// jobs, with any value.
func NewRepositoryCaches(kube kubernetes.Interface, velero *Clientset, namespace, jobLabel string) (*RepositoryCaches, error) {
	b := builder{}
	created := &RepositoryCaches{
		Repositories: add(&b, "backuprepositories", velero.BackupRepositories(namespace), &velerov1.BackupRepository{}, Scope{}, noTrim[*velerov1.BackupRepository]),
		Locations:    add(&b, "backupstoragelocations", velero.BackupStorageLocations(namespace), &velerov1.BackupStorageLocation{}, Scope{}, noTrim[*velerov1.BackupStorageLocation]),
		Jobs:         add(&b, "maintenance jobs", kube.BatchV1().Jobs(namespace), &batchv1.Job{}, Scope{Labels: jobLabel}, noTrim[*batchv1.Job]),
	}
	created.all = b.created
	return created, b.err
}

// Run watches until the context ends. It returns when every informer has stopped.
func (m *RepositoryCaches) Run(ctx context.Context) { run(ctx, m.all) }

// Lacking describes the caches that are not synced, with the errors of their last requests; empty if all are synced.
func (m *RepositoryCaches) Lacking() string { return lacking(m.all) }
