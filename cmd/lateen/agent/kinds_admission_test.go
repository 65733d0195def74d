package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// emptyCache is a cache whose resources have all been deleted.
type emptyCache struct {
	resources[*velerov1.PodVolumeBackup]
}

func (emptyCache) Get(string) (*velerov1.PodVolumeBackup, bool) { return nil, false }

// A deleted resource leaves the admission queue, even if this agent never reconciled it. Otherwise, the transfers
// behind it never get their turn (T6).
func TestADeletedTransferLeavesTheAdmissionQueue(t *testing.T) {
	admission := capacity.NewAdmission(1, 1, time.Minute, testingclock.NewFakeClock(time.Unix(10, 0)))
	slots := capacity.NewNodeSlots("n1", 1, 1)
	for i, uid := range []types.UID{"first", "second"} {
		admission.Observe(capacity.Entry{UID: uid, Key: string(uid), Version: "1", Created: time.Unix(int64(i), 0), Phase: capacity.Waiting})
	}
	enqueued := false
	require.False(t, admission.TryAdmit("second", func() { enqueued = true }))
	l := &kindController[*velerov1.PodVolumeBackup]{
		resources: emptyCache{},
		transfers: &reconcile.TransferReconciler[*velerov1.PodVolumeBackup]{
			Kind: transfer.PodVolumeBackup(), Dependencies: reconcile.Dependencies{Admission: admission, NodeSlots: slots, Preparing: capacity.Unpaced()},
		},
	}
	l.note(&velerov1.PodVolumeBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "first"}})
	require.True(t, enqueued, "the second in the queue is not enqueued")
	require.True(t, admission.TryAdmit("second", nil))
}
