package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/reconcile/capacity"
)

// standsIn turns the fixture's agent into a coordinator on another node. A mover of n1 runs; only a kubelet or a force
// deletion removes its pod. It returns the grace periods of all deletions; -1 means the pod's own.
func (f *fixture) standsIn(t *testing.T, phase velerov1.PodVolumeBackupPhase) *[]int64 {
	t.Helper()
	for range 2 {
		_, err := f.Reconcile(t.Context(), testKey)
		require.NoError(t, err)
	}
	f.kubelet(t)
	f.object.Status.Phase = phase
	f.Agent.Node, f.NodeSlots = "n2", capacity.NewNodeSlots("n2", 1, 1)
	var graces []int64
	f.kube.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		options := action.(clienttesting.DeleteActionImpl).DeleteOptions
		require.EqualValues(t, "mover-uid", *options.Preconditions.UID)
		if options.GracePeriodSeconds != nil {
			graces = append(graces, *options.GracePeriodSeconds)
			return false, nil, nil
		}
		graces = append(graces, -1)
		f.terminate(t)
		return true, nil, nil
	})
	return &graces
}

// terminate marks the mover's pod as deleting. Its kubelet does not confirm the deletion.
func (f *fixture) terminate(t *testing.T) {
	t.Helper()
	pod := f.Mover(testKey)
	pod.DeletionTimestamp, pod.Finalizers = new(metav1.NewTime(f.clock.Now())), []string{"kubelet"}
	require.NoError(t, f.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "velero"))
}

func (f *fixture) steps(t *testing.T, count int) {
	t.Helper()
	for range count {
		_, err := f.Reconcile(t.Context(), testKey)
		require.NoError(t, err)
	}
}

func TestAMoverIsForceDeletedOnlyOnceItsNodeIsLost(t *testing.T) {
	s := newFixture(t, fault{})
	graces := s.standsIn(t, velerov1.PodVolumeBackupPhaseFailed)
	s.Agent.Fleet = coordinatorFleet{absent: testNode}
	s.steps(t, 3)
	require.Equal(t, []int64{-1}, *graces)
	require.NotEmpty(t, s.object.Finalizers, "the mover may still work")
	s.Agent.Fleet = coordinatorFleet{lost: testNode}
	s.steps(t, 3)
	require.Equal(t, []int64{-1, 0}, *graces)
	require.Empty(t, s.object.Finalizers)
}

func TestACoordinatorCountsTheMoversOfANodeBeforeItStandsIn(t *testing.T) {
	s := newFixture(t, fault{})
	s.standsIn(t, velerov1.PodVolumeBackupPhasePrepared) // a mover that waits for its slot
	s.TrackCapacity(s.object.DeepCopy())
	works := s.object.DeepCopy()
	works.Name, works.UID, works.Status.Phase = "works", "works-uid", velerov1.PodVolumeBackupPhaseInProgress
	s.TrackCapacity(works)
	require.Zero(t, s.NodeSlots.Own().InUse())
	s.Agent.Fleet = coordinatorFleet{absent: testNode}
	s.steps(t, 3)
	require.Equal(t, velerov1.PodVolumeBackupPhasePrepared, s.object.Status.Phase, "two movers where one may work")
	works.Status.Phase = velerov1.PodVolumeBackupPhaseCompleted
	s.TrackCapacity(works)
	s.steps(t, 1)
	require.Equal(t, velerov1.PodVolumeBackupPhaseInProgress, s.object.Status.Phase)
}
