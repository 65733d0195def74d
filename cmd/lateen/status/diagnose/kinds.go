package diagnose

import (
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// subject is a custom resource of any kind.
type subject struct {
	kind  string // as in the API
	meta  metav1.Object
	state transfer.State
	move  objects.MoverSpec
}

func (s *subject) key() string { return s.meta.GetNamespace() + "/" + s.meta.GetName() }

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

// volume names the volume of a transfer for people.
func (s *subject) volume() string {
	switch source := s.move.Source; {
	case source.PodVolume != nil:
		return source.PodVolume.Pod.Namespace + "/" + source.PodVolume.Pod.Name + "/" + source.PodVolume.Volume
	case source.Snapshot != nil:
		return source.Snapshot.Namespace + "/" + source.Snapshot.Claim
	case source.Target != nil:
		return source.Target.Namespace + "/" + source.Target.Claim
	}
	return ""
}
