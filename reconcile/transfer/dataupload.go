package transfer

import (
	"cmp"
	"fmt"
	"time"

	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// DataUpload returns the kind that reads a CSI snapshot. The scheduler chooses the node of its mover.
func DataUpload() Kind[*velerov2alpha1.DataUpload] {
	return Kind[*velerov2alpha1.DataUpload]{
		Kind:      api.DataUpload(),
		Copy:      (*velerov2alpha1.DataUpload).DeepCopy,
		Get:       getDataUpload,
		Set:       setDataUpload,
		MoverSpec: specOfDataUpload,
		Result:    readBackup("volume was empty so no data was upload"),
	}
}

func getDataUpload(du *velerov2alpha1.DataUpload) State {
	state := commonState(du, api.DataUpload().Finalizer)
	status := du.Status
	state.Phase, state.Cancel = phaseOf(status.Phase), du.Spec.Cancel
	state.OwnsSnapshot, state.Foreign, state.DataMover = true, foreign(du.Spec.DataMover), du.Spec.DataMover
	state.Acceptor, state.Node, state.NodeOS = status.AcceptedByNode, status.Node, string(status.NodeOS)
	state.Message = status.Message
	state.AcceptedAt, state.StartedAt, state.CompletedAt = objects.TimeOf(status.AcceptedTimestamp), objects.TimeOf(status.StartTimestamp), objects.TimeOf(status.CompletionTimestamp)
	state.Progress = Progress{Total: status.Progress.TotalBytes, Done: status.Progress.BytesDone}
	state.Outcome = Outcome{SnapshotID: status.SnapshotID, Path: status.Path, IncrementalBytes: status.IncrementalBytes}
	state.UnsupportedReason = cmp.Or(refuseSnapshot(du.Spec), refuseFields(du, "parentSnapshot", "sourceFSType"))
	return state
}

// refuseSnapshot returns why a snapshot can never be exposed; empty if it can. Velero's server leaves the storage
// class empty if the claim has none.
func refuseSnapshot(spec velerov2alpha1.DataUploadSpec) string {
	switch {
	case spec.SnapshotType != velerov2alpha1.SnapshotTypeCSI || spec.CSISnapshot == nil:
		return fmt.Sprintf("snapshot type %q is not supported by Lateen; run the backup with a data mover that supports it", spec.SnapshotType)
	case spec.CSISnapshot.StorageClass == "":
		return fmt.Sprintf("claim %s/%s has no storage class, so no volume can be provisioned from its snapshot; run the backup without snapshot data movement",
			spec.SourceNamespace, spec.SourcePVC)
	default:
		return ""
	}
}

func setDataUpload(du *velerov2alpha1.DataUpload, state State) {
	setCommon(du, state, api.DataUpload().Finalizer)
	du.Spec.Cancel = state.Cancel
	status := &du.Status
	status.Phase, status.Message = velerov2alpha1.DataUploadPhase(state.Phase), state.Message
	status.AcceptedByNode, status.Node, status.NodeOS = state.Acceptor, state.Node, velerov2alpha1.NodeOS(state.NodeOS)
	status.AcceptedTimestamp, status.StartTimestamp, status.CompletionTimestamp = objects.Timestamp(state.AcceptedAt), objects.Timestamp(state.StartedAt), objects.Timestamp(state.CompletedAt)
	status.Progress.TotalBytes, status.Progress.BytesDone = state.Progress.Total, state.Progress.Done
	status.SnapshotID, status.Path, status.IncrementalBytes = state.Outcome.SnapshotID, state.Outcome.Path, state.Outcome.IncrementalBytes
}

func specOfDataUpload(du *velerov2alpha1.DataUpload, resourceTimeout time.Duration) objects.MoverSpec {
	spec := newMoverSpec(du)
	spec.Command = command(du, cmp.Or(du.Spec.OperationTimeout.Duration, resourceTimeout), "data-mover", "backup", "--data-upload="+du.Name)
	spec.PassVolumeMode, spec.Group, spec.BlockMover = true, groupSnapshots, du.Spec.DataMover == blockMover
	if snapshot := du.Spec.CSISnapshot; snapshot != nil {
		spec.Source.Snapshot = &objects.SnapshotSource{
			Namespace: du.Spec.SourceNamespace, Snapshot: snapshot.VolumeSnapshot, Class: snapshot.SnapshotClass,
			Claim: du.Spec.SourcePVC, StorageClass: snapshot.StorageClass,
		}
	}
	return spec
}

// nodeOS returns the operating system that a resource requires; empty if any is allowed.
func nodeOS(os velerov2alpha1.NodeOS) corev1.OSName {
	if os == velerov2alpha1.NodeOSAuto {
		return ""
	}
	return corev1.OSName(os)
}
