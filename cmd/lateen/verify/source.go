package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// annotationClaim is on PodVolumeBackups: the claim of the volume (Velero's pkg/podvolume/configs PVCNameAnnotation).
const annotationClaim = "velero.io/pvc-name"

// The default storage class, and one without a provisioner (Kubernetes' volume/util and v1helper).
const (
	annotationDefaultClass = "storageclass.kubernetes.io/is-default-class"
	noProvisioner          = "kubernetes.io/no-provisioner"
)

// operationTimeout is that of a DataDownload for a PodVolumeBackup, which has none: Velero's default for DataDownloads.
const operationTimeout = 10 * time.Minute

// source is what is known about a volume of the backup: how to restore it, and into which claim.
type source struct {
	Volume

	download velerov2alpha1.DataDownloadSpec // without its target
	from     types.NamespacedName            // the claim that was backed up; no name if the volume had none
	claim    corev1.PersistentVolumeClaimSpec
	block    bool // its mover restores a device
}

// sources returns the volumes of the backup, DataUploads first.
func (v *verification) sources(ctx context.Context, class string) ([]*source, error) {
	var all []*source
	classes, err := v.Kube.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list storage classes: %w", err)
	}
	ofBackup := metav1.ListOptions{LabelSelector: velerov1.BackupNameLabel + "=" + cli.LabelValue(v.backup)}
	for _, kind := range []api.Kind{api.DataUpload(), api.PodVolumeBackup()} {
		list, err := v.Dynamic.Resource(kind.GVR()).Namespace(v.Namespace).List(ctx, ofBackup)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Resource, err)
		}
		for index := range list.Items {
			one, err := read(kind, &list.Items[index])
			if err == nil && one.Result == Pending {
				err = v.addClaim(ctx, one)
				one.addClass(class, classes.Items)
			}
			if err != nil {
				return nil, fmt.Errorf("read %s %s: %w", kind.GVK.Kind, list.Items[index].GetName(), err)
			}
			all = append(all, one)
		}
	}
	return all, nil
}

// read returns a volume without its claim.
func read(kind api.Kind, object *unstructured.Unstructured) (*source, error) {
	if kind.Name == api.DataUpload().Name {
		return readAs(object, transfer.DataUpload(), ofUpload)
	}
	return readAs(object, transfer.PodVolumeBackup(), ofPodVolumeBackup)
}

func readAs[T any, P interface {
	*T
	transfer.Object
}](object *unstructured.Unstructured, kind transfer.Kind[P], of func(P) *source) (*source, error) {
	typed := P(new(T))
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		return nil, err
	}
	s, state := of(typed), kind.Get(typed)
	s.Kind, s.Name, s.Bytes = kind.GVK.Kind, object.GetName(), state.Progress.Done
	s.block = kind.MoverSpec(typed, 0).BlockMover
	s.download.SnapshotID, s.download.SnapshotSize = state.Outcome.SnapshotID, state.Progress.Total
	s.Result, s.Message = decide(state)
	return s, nil
}

// decide returns the result of a volume that is not restored, else Pending.
func decide(state transfer.State) (is Result, message string) {
	switch {
	case state.Foreign:
		return Unsupported, fmt.Sprintf("data mover %s is not one of Velero's", state.DataMover)
	case state.UnsupportedReason != "":
		return Unsupported, state.UnsupportedReason
	case state.Phase != transfer.Completed:
		return Failed, fmt.Sprintf("not backed up: its phase is %s", state.Phase)
	case strings.HasPrefix(state.Message, "volume was empty"): // so say Lateen's and Velero's agents, for both kinds
		return Empty, ""
	case state.Outcome.SnapshotID == "":
		return Failed, "not backed up: it is Completed without a snapshot"
	}
	return Pending, ""
}

func ofUpload(upload *velerov2alpha1.DataUpload) *source {
	spec := upload.Spec
	s := &source{
		Volume: Volume{Volume: spec.SourceNamespace + "/" + spec.SourcePVC},
		from:   types.NamespacedName{Namespace: spec.SourceNamespace, Name: spec.SourcePVC},
		download: velerov2alpha1.DataDownloadSpec{
			BackupStorageLocation: spec.BackupStorageLocation, DataMover: spec.DataMover, SourceNamespace: spec.SourceNamespace,
			OperationTimeout: spec.OperationTimeout, NodeOS: upload.Status.NodeOS,
		},
	}
	if spec.CSISnapshot != nil && spec.CSISnapshot.StorageClass != "" {
		s.claim.StorageClassName = &spec.CSISnapshot.StorageClass
	}
	return s
}

// ofPodVolumeBackup restores with a DataDownload too: both kinds write to the same repository of the namespace, in the same form.
func ofPodVolumeBackup(backup *velerov1.PodVolumeBackup) *source {
	spec := backup.Spec
	return &source{
		Volume: Volume{Volume: spec.Pod.Namespace + "/" + spec.Pod.Name + "/" + spec.Volume},
		from:   types.NamespacedName{Namespace: spec.Pod.Namespace, Name: backup.Annotations[annotationClaim]},
		download: velerov2alpha1.DataDownloadSpec{
			BackupStorageLocation: spec.BackupStorageLocation, SourceNamespace: spec.Pod.Namespace, OperationTimeout: metav1.Duration{Duration: operationTimeout},
		},
	}
}

// addClaim sets the scratch claim. It is like the claim that was backed up, if that still exists: a DataUpload has neither size nor
// mode of its volume.
func (v *verification) addClaim(ctx context.Context, s *source) error {
	s.claim.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	size := enough(s.Bytes)
	if s.block { // no pod uses the claim, so the device need not become a file system
		s.claim.VolumeMode = new(corev1.PersistentVolumeBlock)
	}
	if s.from.Name != "" {
		claim, err := v.Kube.CoreV1().PersistentVolumeClaims(s.from.Namespace).Get(ctx, s.from.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read claim %s: %w", s.from, err)
		}
		if err == nil {
			s.claim.VolumeMode = cmp.Or(s.claim.VolumeMode, claim.Spec.VolumeMode)
			if s.claim.StorageClassName == nil {
				s.claim.StorageClassName = claim.Spec.StorageClassName
			}
			least := max(s.Bytes, 1)
			if !objects.IsBlock(s.claim.VolumeMode) {
				least += s.Bytes / 20 // for the file system; the claim may have been created again, with another size
			}
			if capacity := claim.Status.Capacity[corev1.ResourceStorage]; capacity.Value() >= least {
				size = capacity
			}
		}
	}
	s.claim.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: size}
	return nil
}

// addClass sets the storage class of the scratch claim: the given one, that of the volume, or the default one. Without a provisioner,
// the claim could get a volume of an administrator, which the restore would overwrite.
func (s *source) addClass(given string, classes []storagev1.StorageClass) {
	name := cmp.Or(given, ptr.Deref(s.claim.StorageClassName, ""))
	at := slices.IndexFunc(classes, func(class storagev1.StorageClass) bool {
		return class.Name == name || name == "" && class.Annotations[annotationDefaultClass] == "true"
	})
	const remedy = "; add --storage-class"
	switch {
	case at >= 0 && classes[at].Provisioner != noProvisioner:
		s.claim.StorageClassName = &classes[at].Name
	case at >= 0:
		s.Result, s.Message = Unsupported, "storage class "+classes[at].Name+" has no provisioner"+remedy
	case name != "":
		s.Result, s.Message = Unsupported, "storage class "+name+" does not exist"+remedy
	default:
		s.Result, s.Message = Unsupported, "the storage class of the volume is not known, and none is the default"+remedy
	}
}

// enough returns the size of a volume for files of so many bytes, in whole GiB: a fifth more, and 1 GiB, for what its file system needs.
func enough(bytes int64) resource.Quantity {
	const gib = 1 << 30
	return *resource.NewQuantity((bytes/5*6+2*gib-1)/gib*gib, resource.BinarySI)
}

func (v *verification) downloads() dynamic.ResourceInterface {
	return v.Dynamic.Resource(api.DataDownload().GVR()).Namespace(v.Namespace)
}
