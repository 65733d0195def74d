package diagnose_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/api"
)

func TestATerminatingMoverIsLeftToTheKubelet(t *testing.T) {
	s := cluster(1, `{}`)
	s.mover(s.backup("nightly", "node-1", time.Hour, inPhase(velerov1.PodVolumeBackupPhaseFailed, time.Hour), func(b *velerov1.PodVolumeBackup) {
		b.Finalizers = []string{api.FinalizerPodVolume}
	}), "node-1", func(pod *corev1.Pod) { pod.DeletionTimestamp = past(time.Minute) })
	report := diagnose.Gather("velero", now, *s, nil).Report()
	require.Len(t, report.Transfers, 1)
	timeline, err := diagnose.Gather("velero", now, *s, nil).Timeline(diagnose.Reference{Kind: "PodVolumeBackup", Name: "nightly"})
	require.NoError(t, err)
	require.Contains(t, timeline.Now, "Clean-up is waiting: the kubelet of node-1 has not ended its mover pod")
	require.Contains(t, timeline.Remedy, "kubectl -n velero describe pod nightly and the log of the kubelet of node-1 have details.")
	require.Equal(t, &view.Wait{Reason: view.WaitCleanUp, Message: "the kubelet of node-1 has not ended its mover pod"}, report.Transfers[0].WaitsFor)
}
