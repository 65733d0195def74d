package status

import (
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

// transfers returns the sources of all kinds of transfers.
func (c *clients) transfers(namespace string) []source {
	all := metav1.ListOptions{}
	return []source{
		from(api.PodVolumeBackup().CRD(), namespace, &velerov1.PodVolumeBackup{}, c.velero.PodVolumeBackups(namespace), all),
		from(api.PodVolumeRestore().CRD(), namespace, &velerov1.PodVolumeRestore{}, c.velero.PodVolumeRestores(namespace), all),
		from(api.DataUpload().CRD(), namespace, &velerov2alpha1.DataUpload{}, c.velero.DataUploads(namespace), all),
		from(api.DataDownload().CRD(), namespace, &velerov2alpha1.DataDownload{}, c.velero.DataDownloads(namespace), all),
	}
}
