package api

import (
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is a row of the table of kinds: a custom resource of Velero that moves data (velero-protocol 0).
type Kind struct {
	GVK       schema.GroupVersionKind
	Name      string // singular name of the resource: label value in metrics, and the name of its queue
	Resource  string // plural name of the resource
	ShortName string // in the commands of Lateen; Velero's CRDs have none
	PodLabel  string // the label by which Velero finds its mover pods
	Finalizer string // Velero's; the agents remove it
	// Metric is the name of the kind in Velero's metrics podVolume_<name>_success_total, failure and cancel; empty
	// if Velero has none.
	Metric   string
	Restores bool // its movers write to a volume
	Rebinds  bool // the restored volume must be rebound to the target claim
}

// Kinds returns the table of kinds, in the order in which a backup and its restore use them.
func Kinds() []Kind {
	return []Kind{PodVolumeBackup(), PodVolumeRestore(), DataUpload(), DataDownload()}
}

// PodVolumeBackup returns the kind that backs up a volume of a running pod.
func PodVolumeBackup() Kind {
	return Kind{
		GVK: velerov1.SchemeGroupVersion.WithKind("PodVolumeBackup"), Name: "podvolumebackup", Resource: "podvolumebackups",
		ShortName: "pvb", PodLabel: velerov1.PVBLabel, Finalizer: FinalizerPodVolume,
	}
}

// PodVolumeRestore returns the kind that restores into a volume of a pod.
func PodVolumeRestore() Kind {
	return Kind{
		GVK: velerov1.SchemeGroupVersion.WithKind("PodVolumeRestore"), Name: "podvolumerestore", Resource: "podvolumerestores",
		ShortName: "pvr", PodLabel: velerov1.PVRLabel, Finalizer: FinalizerPodVolume, Restores: true,
	}
}

// DataUpload returns the kind that backs up a CSI snapshot.
func DataUpload() Kind {
	return Kind{
		GVK: velerov2alpha1.SchemeGroupVersion.WithKind("DataUpload"), Name: "dataupload", Resource: "datauploads",
		ShortName: "du", PodLabel: velerov1.DataUploadLabel, Finalizer: FinalizerData, Metric: "data_upload",
	}
}

// DataDownload returns the kind that restores into a new volume, which is then rebound to the target claim.
func DataDownload() Kind {
	return Kind{
		GVK: velerov2alpha1.SchemeGroupVersion.WithKind("DataDownload"), Name: "datadownload", Resource: "datadownloads",
		ShortName: "dd", PodLabel: velerov1.DataDownloadLabel, Finalizer: FinalizerData, Metric: "data_download",
		Restores: true, Rebinds: true,
	}
}

// GVR returns the resource with its group and version.
func (k Kind) GVR() schema.GroupVersionResource {
	return k.GVK.GroupVersion().WithResource(k.Resource)
}

// CRD returns the name of the CustomResourceDefinition, which is also the resource with its group, as in RBAC.
func (k Kind) CRD() string { return k.GVR().GroupResource().String() }
