package informers

import (
	"context"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/client-go/kubernetes"
)

// RepositoryCaches are the informers that an agent has while it coordinates, for the maintenance of repositories:
//
//	Repositories   Velero's namespace
//	Locations      Velero's namespace
//	Jobs           Velero's namespace, by label: maintenance jobs, whoever made them
type RepositoryCaches struct {
	Repositories *Informer[*velerov1.BackupRepository]
	Locations    *Informer[*velerov1.BackupStorageLocation]
	Jobs         *Informer[*batchv1.Job]

	all []informer
}

// NewRepositoryCaches prepares the informers of one term. JobLabel is what maintenance jobs are labelled with, whatever
// its value.
func NewRepositoryCaches(kube kubernetes.Interface, velero *Clientset, namespace, jobLabel string) (*RepositoryCaches, error) {
	b := builder{}
	created := &RepositoryCaches{
		Repositories: add(&b, "backuprepositories", velero.BackupRepositories(namespace), &velerov1.BackupRepository{}, Scope{}, noTrim[*velerov1.BackupRepository]),
		Locations:    add(&b, "backupstoragelocations", velero.BackupStorageLocations(namespace), &velerov1.BackupStorageLocation{}, Scope{}, noTrim[*velerov1.BackupStorageLocation]),
		Jobs:         add(&b, "maintenance jobs", kube.BatchV1().Jobs(namespace), &batchv1.Job{}, Scope{Labels: jobLabel}, noTrim[*batchv1.Job]),
	}
	created.all = b.made
	return created, b.err
}

// Run watches until the context ends, and returns when every informer has stopped.
func (m *RepositoryCaches) Run(ctx context.Context) { run(ctx, m.all) }

// Lacking says which of the caches are not complete, and why; empty if all are.
func (m *RepositoryCaches) Lacking() string { return lacking(m.all) }
