package status

import (
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// transfers returns the sources of all kinds of transfers.
func (c *Clients) transfers(namespace string) []source {
	all := metav1.ListOptions{}
	return []source{
		from(api.PodVolumeBackup().CRD(), namespace, &velerov1.PodVolumeBackup{}, c.velero.PodVolumeBackups(namespace), all),
		from(api.PodVolumeRestore().CRD(), namespace, &velerov1.PodVolumeRestore{}, c.velero.PodVolumeRestores(namespace), all),
		from(api.DataUpload().CRD(), namespace, &velerov2alpha1.DataUpload{}, c.velero.DataUploads(namespace), all),
		from(api.DataDownload().CRD(), namespace, &velerov2alpha1.DataDownload{}, c.velero.DataDownloads(namespace), all),
	}
}

// asTransfer returns a custom resource of any kind of transfer; nil for other objects.
func asTransfer(object runtime.Object) *subject {
	switch o := object.(type) {
	case *velerov1.PodVolumeBackup:
		return subjectOf(transfer.PodVolumeBackup(), o)
	case *velerov1.PodVolumeRestore:
		return subjectOf(transfer.PodVolumeRestore(), o)
	case *velerov2alpha1.DataUpload:
		return subjectOf(transfer.DataUpload(), o)
	case *velerov2alpha1.DataDownload:
		return subjectOf(transfer.DataDownload(), o)
	}
	return nil
}

func subjectOf[T transfer.Object](kind transfer.Kind[T], object T) *subject {
	return &subject{kind: kind.GVK.Kind, meta: object, state: kind.Get(object), move: kind.Movement(object, 0)}
}

// shortKind returns the short name of a kind of transfer.
func shortKind(name string) string {
	for _, one := range api.Kinds() {
		if one.GVK.Kind == name {
			return one.ShortName
		}
	}
	return name
}
