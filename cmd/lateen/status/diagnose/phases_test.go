package diagnose

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/reconcile/transfer"
)

// TestEveryPhaseIsExplained looks for a phase that status describes as unknown.
func TestEveryPhaseIsExplained(t *testing.T) {
	for _, phase := range transfer.Phases() {
		backup := &velerov1.PodVolumeBackup{}
		backup.Name, backup.Status.Phase = "backup", velerov1.PodVolumeBackupPhase(phase)
		j := Gather("velero", time.Time{}, []runtime.Object{backup}, nil).evaluator()
		if wait := j.waits(j.transfers[0]); wait != nil {
			require.NotContains(t, wait.Message, "is unknown to Lateen", phase)
		}
	}
}
