package reconcile

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// evicted returns a PodVolumeBackup whose mover was evicted, though its pod still exists.
func evicted(t *testing.T, phase velerov1.PodVolumeBackupPhase) *single[*velerov1.PodVolumeBackup] {
	t.Helper()
	s := newWorking()
	s.object.Status.Phase = phase
	s.pods[testKey].Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory"}
	s.live[testKey], s.live["app/db"] = s.pods[testKey], s.pods["app/db"]
	require.NoError(t, s.kube.Tracker().Add(s.pods[testKey]))
	s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		delete(s.live, testKey)
		delete(s.pods, testKey)
		return false, nil, nil
	})
	return s
}

// peeking is an API server with an agent of Velero. That agent checks the mover of each Accepted resource and cancels
// a resource whose mover failed.
type peeking struct {
	*single[*velerov1.PodVolumeBackup]
	harmed bool
}

func (p *peeking) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, sub ...string) (*velerov1.PodVolumeBackup, error) {
	written, err := p.single.Patch(ctx, name, pt, data, opts, sub...)
	pod := p.live[testKey]
	p.harmed = p.harmed || err == nil && written.Status.Phase == velerov1.PodVolumeBackupPhaseAccepted && pod != nil && pod.Status.Phase == corev1.PodFailed
	return written, err
}

func TestAFailedMoverIsDeletedBeforeItsTransferReturnsToAccepted(t *testing.T) {
	for _, phase := range []velerov1.PodVolumeBackupPhase{velerov1.PodVolumeBackupPhasePrepared, velerov1.PodVolumeBackupPhaseInProgress} {
		t.Run(string(phase), func(t *testing.T) {
			s := evicted(t, phase)
			velero, registry := &peeking{single: s}, prometheus.NewRegistry()
			s.Client, s.Metrics = velero, metrics.New(registry, "test", testNode)
			var phases []string
			s.OnUpdate = func(_ *velerov1.PodVolumeBackup, before, after transfer.State) {
				phases = append(phases, string(before.Phase+" to "+after.Phase))
			}
			for range 2 { // the pod is deleted, the restart is counted
				s.step(t)
			}
			require.Equal(t, transfer.Accepted, s.state().Phase)
			require.False(t, velero.harmed, "an agent of Velero cancels it")
			require.Equal(t, 1, s.state().Restarts)
			require.Equal(t, "mover was evicted: low on memory", s.state().Message)
			require.Equal(t, []string{string(phase) + " to Accepted"}, phases, "reported once")
			require.Zero(t, s.NodeSlots.Own().InUse())
			require.Empty(t, s.live[testKey])
			restarts, err := testutil.GatherAndCount(registry, "lateen_mover_restarts_total")
			require.NoError(t, err)
			require.Equal(t, 1, restarts)
			require.Equal(t, []string{"Warning MoverRestarted mover was evicted: low on memory; restart 1 of 3"}, s.sent())
		})
	}
}

func TestAMoverThatFailsBeforeItIsReadyIsDeletedBeforeTheNextWrite(t *testing.T) {
	s := evicted(t, velerov1.PodVolumeBackupPhaseAccepted)
	velero := &peeking{single: s}
	s.Client = velero
	deletions := 0
	s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { // the kubelet confirms it later
		s.pods[testKey].DeletionTimestamp, s.pods[testKey].Status.Reason = new(metav1.NewTime(s.clock.Now())), ""
		deletions++
		return true, nil, nil
	})
	for range 2 {
		require.Equal(t, s.Limits.PlaceTimeout, s.step(t))
		require.Zero(t, s.state().Restarts)
		require.Equal(t, 1, deletions)
	}
	delete(s.pods, testKey)
	delete(s.live, testKey)
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	require.False(t, velero.harmed, "an agent of Velero cancels it")
	require.Equal(t, 1, s.state().Restarts)
	require.Equal(t, "mover was evicted: low on memory", s.state().Message)
	require.Equal(t, "Warning MoverRestarted mover was evicted: low on memory; restart 1 of 3", <-s.events.Events)
	require.Equal(t, s.Limits.RestartDelay, s.step(t))
}

func TestAnEarlierMoverOfALateCacheIsNotTheCurrentOne(t *testing.T) {
	for name, owner := range map[string]types.UID{"it is deleted": "", "another resource has a pod of its name": "another"} {
		t.Run(name, func(t *testing.T) {
			s := newWorking()
			s.object.Annotations = map[string]string{api.AnnotationRestarts: "1"}
			if owner != "" {
				s.live[testKey] = s.pods[testKey].DeepCopy()
				s.live[testKey].OwnerReferences[0].UID = owner
			}
			s.step(t)
			require.Equal(t, transfer.Accepted, s.state().Phase)
			require.Equal(t, 2, s.state().Restarts)
		})
	}
}
