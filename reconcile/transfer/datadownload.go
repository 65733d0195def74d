package transfer

import (
	"cmp"
	"time"

	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// DataDownload returns the kind that restores into an own volume, which is then rebound to the target claim.
func DataDownload() Kind[*velerov2alpha1.DataDownload] {
	return Kind[*velerov2alpha1.DataDownload]{
		Kind:      api.DataDownload(),
		Copy:      (*velerov2alpha1.DataDownload).DeepCopy,
		Get:       getDataDownload,
		Set:       setDataDownload,
		MoverSpec: specOfDataDownload,
		Result:    readRestore,
	}
}

func getDataDownload(dd *velerov2alpha1.DataDownload) State {
	state := commonState(dd, api.DataDownload().Finalizer)
	status := dd.Status
	state.Phase, state.Cancel = phaseOf(status.Phase), dd.Spec.Cancel
	state.Foreign, state.DataMover = foreign(dd.Spec.DataMover), dd.Spec.DataMover
	harmless := []string{"restoreType", "targetVolume.fsType"}
	if dd.Spec.DataMover != blockMover {
		harmless = append(harmless, "csiSnapshot")
	}
	state.UnsupportedReason = refuseFields(dd, harmless...)
	state.Acceptor, state.Node = status.AcceptedByNode, status.Node
	state.InPlace = dd.Spec.TargetVolume.PV
	state.RebindTimeout = dd.Spec.OperationTimeout.Duration
	state.Message = status.Message
	state.AcceptedAt, state.StartedAt, state.CompletedAt = objects.TimeOf(status.AcceptedTimestamp), objects.TimeOf(status.StartTimestamp), objects.TimeOf(status.CompletionTimestamp)
	state.Progress = Progress{Total: status.Progress.TotalBytes, Done: status.Progress.BytesDone}
	return state
}

func setDataDownload(dd *velerov2alpha1.DataDownload, state State) {
	setCommon(dd, state, api.DataDownload().Finalizer)
	dd.Spec.Cancel = state.Cancel
	status := &dd.Status
	status.Phase, status.Message = velerov2alpha1.DataDownloadPhase(state.Phase), state.Message
	status.AcceptedByNode, status.Node = state.Acceptor, state.Node
	status.AcceptedTimestamp, status.StartTimestamp, status.CompletionTimestamp = objects.Timestamp(state.AcceptedAt), objects.Timestamp(state.StartedAt), objects.Timestamp(state.CompletedAt)
	status.Progress.TotalBytes, status.Progress.BytesDone = state.Progress.Total, state.Progress.Done
}

// isScratch reports whether `lateen verify` created a DataDownload and its target claim.
func isScratch(dd *velerov2alpha1.DataDownload) bool {
	target := dd.Spec.TargetVolume
	return dd.Labels[api.LabelVerify] != "" && target.Namespace == dd.Namespace && target.PVC == dd.Name+api.ScratchSuffix && target.PV == ""
}

func specOfDataDownload(dd *velerov2alpha1.DataDownload, resourceTimeout time.Duration) objects.MoverSpec {
	spec := newMoverSpec(dd)
	spec.Command = command(dd, cmp.Or(dd.Spec.OperationTimeout.Duration, resourceTimeout), "data-mover", "restore", "--data-download="+dd.Name)
	spec.PassVolumeMode, spec.Group, spec.OS = true, groupRestores, cmp.Or(nodeOS(dd.Spec.NodeOS), corev1.Linux)
	spec.Restores, spec.SnapshotSize, spec.BlockMover = true, dd.Spec.SnapshotSize, dd.Spec.DataMover == blockMover
	spec.Source.Target = &objects.TargetSource{
		Namespace: dd.Spec.TargetVolume.Namespace, Claim: dd.Spec.TargetVolume.PVC, Volume: dd.Spec.TargetVolume.PV,
		MoverNode: dd.Status.Node, Scratch: isScratch(dd), SourceNamespace: dd.Spec.SourceNamespace,
	}
	return spec
}
