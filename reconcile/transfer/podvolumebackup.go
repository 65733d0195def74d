package transfer

import (
	"cmp"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// uploaderKopia is the only uploader whose movers are pods.
const uploaderKopia = "kopia"

// PodVolumeBackup returns the kind that the agent of spec.node owns in every phase.
func PodVolumeBackup() Kind[*velerov1.PodVolumeBackup] {
	return Kind[*velerov1.PodVolumeBackup]{
		Kind:      api.PodVolumeBackup(),
		Copy:      (*velerov1.PodVolumeBackup).DeepCopy,
		Get:       getPodVolumeBackup,
		Set:       setPodVolumeBackup,
		MoverSpec: specOfPodVolumeBackup,
		Result:    readBackup("volume was empty so no snapshot was taken"),
	}
}

func getPodVolumeBackup(pvb *velerov1.PodVolumeBackup) State {
	state := commonState(pvb, api.PodVolumeBackup().Finalizer)
	status := pvb.Status
	state.Phase, state.Cancel, state.NodeBound, state.Node = phaseOf(status.Phase), pvb.Spec.Cancel, true, pvb.Spec.Node
	state.Message = status.Message
	state.AcceptedAt, state.StartedAt, state.CompletedAt = objects.TimeOf(status.AcceptedTimestamp), objects.TimeOf(status.StartTimestamp), objects.TimeOf(status.CompletionTimestamp)
	state.Progress = Progress{Total: status.Progress.TotalBytes, Done: status.Progress.BytesDone}
	state.Outcome = Outcome{SnapshotID: status.SnapshotID, Path: status.Path, IncrementalBytes: status.IncrementalBytes}
	state.UnsupportedReason = cmp.Or(refuseUploader(pvb.Spec.UploaderType, "run"), refuseNode(pvb.Spec.Node), refuseFields(pvb, "parentSnapshot"))
	return state
}

func setPodVolumeBackup(pvb *velerov1.PodVolumeBackup, state State) {
	setCommon(pvb, state, api.PodVolumeBackup().Finalizer)
	pvb.Spec.Cancel = state.Cancel
	status := &pvb.Status
	status.Phase, status.Message = velerov1.PodVolumeBackupPhase(state.Phase), state.Message
	status.AcceptedTimestamp, status.StartTimestamp, status.CompletionTimestamp = objects.Timestamp(state.AcceptedAt), objects.Timestamp(state.StartedAt), objects.Timestamp(state.CompletedAt)
	status.Progress.TotalBytes, status.Progress.BytesDone = state.Progress.Total, state.Progress.Done
	status.SnapshotID, status.Path, status.IncrementalBytes = state.Outcome.SnapshotID, state.Outcome.Path, state.Outcome.IncrementalBytes
}

func specOfPodVolumeBackup(pvb *velerov1.PodVolumeBackup, resourceTimeout time.Duration) objects.MoverSpec {
	spec := newMoverSpec(pvb)
	spec.Command = command(pvb, resourceTimeout, "pod-volume", "backup", "--pod-volume-backup="+pvb.Name)
	spec.Source.PodVolume = &objects.PodVolumeSource{Pod: pvb.Spec.Pod, Volume: pvb.Spec.Volume}
	return spec
}

// refuseNode refuses a backup that names no node. Velero's server always sets that of the pod.
func refuseNode(node string) string {
	if node == "" {
		return "spec.node is empty; it must name the node of the pod"
	}
	return ""
}

// refuseUploader returns why transfers of the uploader are not supported; empty if they are.
func refuseUploader(uploader, verb string) string {
	if uploader == uploaderKopia {
		return ""
	}
	return fmt.Sprintf("uploader %s is not supported by Lateen; %s it with Velero's node-agent", uploader, verb)
}

// Names are the names of a PodVolumeBackup in Velero's metrics.
type Names struct {
	Operation string // <name>-<location>-<pod namespace>-<uploader>-backup
	Backup    string // namespace/name of its Backup
}

// VeleroMetricNames builds the names in the same way as Velero (velero-protocol 7).
func VeleroMetricNames(pvb *velerov1.PodVolumeBackup) Names {
	names := Names{Operation: fmt.Sprintf("%s-%s-%s-%s-backup", pvb.Name, pvb.Spec.BackupStorageLocation, pvb.Spec.Pod.Namespace, pvb.Spec.UploaderType)}
	if owner := metav1.GetControllerOfNoCopy(pvb); owner != nil {
		names.Backup = pvb.Namespace + "/" + owner.Name
	}
	return names
}
