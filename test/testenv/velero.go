package testenv

import (
	"context"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/gentype"
)

// object is one of Velero's types.
type object interface {
	runtime.Object
	metav1.Object
}

// clientOf returns a typed client of Velero's namespace.
func clientOf[T any, L any, P interface {
	*T
	object
}, Q interface {
	*L
	runtime.Object
}](e *Env, resource string) *gentype.ClientWithList[P, Q] {
	return gentype.NewClientWithList[P, Q](resource, e.Velero, metav1.ParameterCodec, e.Namespace,
		func() P { return new(T) }, func() Q { return new(L) })
}

// Backups returns the client of Backups.
func (e *Env) Backups() *gentype.ClientWithList[*velerov1.Backup, *velerov1.BackupList] {
	return clientOf[velerov1.Backup, velerov1.BackupList](e, "backups")
}

// Restores returns the client of Restores.
func (e *Env) Restores() *gentype.ClientWithList[*velerov1.Restore, *velerov1.RestoreList] {
	return clientOf[velerov1.Restore, velerov1.RestoreList](e, "restores")
}

// Locations returns the client of BackupStorageLocations.
func (e *Env) Locations() *gentype.ClientWithList[*velerov1.BackupStorageLocation, *velerov1.BackupStorageLocationList] {
	return clientOf[velerov1.BackupStorageLocation, velerov1.BackupStorageLocationList](e, "backupstoragelocations")
}

// Repositories returns the client of BackupRepositories.
func (e *Env) Repositories() *gentype.ClientWithList[*velerov1.BackupRepository, *velerov1.BackupRepositoryList] {
	return clientOf[velerov1.BackupRepository, velerov1.BackupRepositoryList](e, "backuprepositories")
}

// Repository creates the backup repository of a namespace, as Velero's server does before the first pod volume
// backup. It waits until a running Velero server has set it to Ready.
func (e *Env) Repository(ctx context.Context, volumeNamespace string, change ...func(*velerov1.BackupRepository)) (*velerov1.BackupRepository, error) {
	repository := &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: fmt.Sprintf("%s-%s-kopia-", volumeNamespace, defaultLocation), Namespace: e.Namespace,
			Labels: map[string]string{
				velerov1.VolumeNamespaceLabel: labelValue(volumeNamespace), velerov1.StorageLocationLabel: defaultLocation,
				velerov1.RepositoryTypeLabel: velerov1.BackupRepositoryTypeKopia,
			},
		},
		Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: volumeNamespace, BackupStorageLocation: defaultLocation, RepositoryType: velerov1.BackupRepositoryTypeKopia,
		},
	}
	for _, set := range change {
		set(repository)
	}
	created, err := e.Repositories().Create(ctx, repository, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create repository: %w", err)
	}
	return Wait(ctx, e.Repositories(), Named(created.Name), func(r *velerov1.BackupRepository) bool {
		return r.Status.Phase == velerov1.BackupRepositoryPhaseReady
	})
}
