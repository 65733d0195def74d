package testenv

import (
	"context"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const repositories = "backuprepositories"

// Repository creates the backup repository of a namespace, as Velero's server does before the first pod volume
// backup. It waits until a running Velero server has set it to Ready.
func (w *Env) Repository(ctx context.Context, volumeNamespace string) (*velerov1.BackupRepository, error) {
	repository := &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: fmt.Sprintf("%s-%s-kopia-", volumeNamespace, defaultLocation), Namespace: w.Namespace,
			Labels: map[string]string{
				velerov1.VolumeNamespaceLabel: labelValue(volumeNamespace), velerov1.StorageLocationLabel: defaultLocation,
				velerov1.RepositoryTypeLabel: velerov1.BackupRepositoryTypeKopia,
			},
		},
		Spec: velerov1.BackupRepositorySpec{
			VolumeNamespace: volumeNamespace, BackupStorageLocation: defaultLocation, RepositoryType: velerov1.BackupRepositoryTypeKopia,
		},
	}
	created := &velerov1.BackupRepository{}
	if err := w.create(ctx, w.Velero, repositories, repository, created); err != nil {
		return nil, err
	}
	return waitVelero(ctx, w, repositories, created.Name, func(r *velerov1.BackupRepository) bool {
		return r.Status.Phase == velerov1.BackupRepositoryPhaseReady
	})
}
