package transfer

import (
	"cmp"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// PodVolumeRestore returns the kind that belongs to the node of its target pod.
func PodVolumeRestore() Kind[*velerov1.PodVolumeRestore] {
	return Kind[*velerov1.PodVolumeRestore]{
		Kind:      api.PodVolumeRestore(),
		Copy:      (*velerov1.PodVolumeRestore).DeepCopy,
		Get:       getPodVolumeRestore,
		Set:       setPodVolumeRestore,
		MoverSpec: specOfPodVolumeRestore,
		Result:    readRestore,
	}
}

func getPodVolumeRestore(pvr *velerov1.PodVolumeRestore) State {
	state := commonState(pvr, api.PodVolumeRestore().Finalizer)
	status := pvr.Status
	state.Phase, state.Cancel, state.NodeBound, state.Node = phaseOf(status.Phase), pvr.Spec.Cancel, true, status.Node
	state.Message = status.Message
	state.AcceptedAt, state.StartedAt, state.CompletedAt = objects.TimeOf(status.AcceptedTimestamp), objects.TimeOf(status.StartTimestamp), objects.TimeOf(status.CompletionTimestamp)
	state.Progress = Progress{Total: status.Progress.TotalBytes, Done: status.Progress.BytesDone}
	state.UnsupportedReason = cmp.Or(refuseUploader(pvr.Spec.UploaderType, "restore"), refuseFields(pvr, "restoreType"))
	return state
}

func setPodVolumeRestore(pvr *velerov1.PodVolumeRestore, state State) {
	setCommon(pvr, state, api.PodVolumeRestore().Finalizer)
	pvr.Spec.Cancel = state.Cancel
	status := &pvr.Status
	status.Phase, status.Message, status.Node = velerov1.PodVolumeRestorePhase(state.Phase), state.Message, state.Node
	status.AcceptedTimestamp, status.StartTimestamp, status.CompletionTimestamp = objects.Timestamp(state.AcceptedAt), objects.Timestamp(state.StartedAt), objects.Timestamp(state.CompletedAt)
	status.Progress.TotalBytes, status.Progress.BytesDone = state.Progress.Total, state.Progress.Done
}

func specOfPodVolumeRestore(pvr *velerov1.PodVolumeRestore, resourceTimeout time.Duration) objects.MoverSpec {
	spec := newMoverSpec(pvr)
	spec.Command = command(pvr, resourceTimeout, "pod-volume", "restore", "--pod-volume-restore="+pvr.Name)
	spec.Restores, spec.SnapshotSize = true, pvr.Spec.SnapshotSize
	spec.Source.PodVolume = &objects.PodVolumeSource{Pod: pvr.Spec.Pod, Volume: pvr.Spec.Volume}
	return spec
}
