package csi_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestClaimIsProvisionedAtOnceAndItsVolumeGoesWithIt(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, csi.Options{})
	claim, volume := s.claim(ctx, t, "data")
	require.Equal(t, claim.UID, volume.Spec.ClaimRef.UID)
	require.Equal(t, s.driver.Name(), volume.Annotations["pv.kubernetes.io/provisioned-by"])
	require.Equal(t, corev1.PersistentVolumeReclaimDelete, volume.Spec.PersistentVolumeReclaimPolicy)
	require.Nil(t, volume.Spec.NodeAffinity)
	handle := volume.Spec.CSI.VolumeHandle
	dir := s.driver.VolumeDir(handle)
	require.Equal(t, []string{handle}, s.driver.Volumes())
	require.Equal(t, dir, volume.Spec.CSI.VolumeAttributes[csi.DirAttribute])
	require.DirExists(t, dir)
	require.Equal(t, "Successfully provisioned volume "+volume.Name, s.said(ctx, t, "data", "ProvisioningSucceeded").Message)

	require.NoError(t, s.Kube.CoreV1().PersistentVolumeClaims(s.Apps).Delete(ctx, "data", metav1.DeleteOptions{}))
	require.NoError(t, s.WaitVolumeGone(ctx, volume.Name))
	require.Empty(t, s.driver.Volumes())
	require.NoDirExists(t, dir)
}

func TestVolumeThatIsRetainedOutlivesItsClaimUntilThePolicyChanges(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, csi.Options{})
	_, volume := s.claim(ctx, t, "data")
	volumes := s.Kube.CoreV1().PersistentVolumes()
	policy := func(policy string) {
		patch := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"` + policy + `"}}`)
		_, err := volumes.Patch(ctx, volume.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		require.NoError(t, err)
	}
	policy("Retain")
	require.NoError(t, s.Kube.CoreV1().PersistentVolumeClaims(s.Apps).Delete(ctx, "data", metav1.DeleteOptions{}))
	_, err := s.WaitVolume(ctx, volume.Name, func(v *corev1.PersistentVolume) bool {
		return v.Status.Phase == corev1.VolumeReleased && len(v.Finalizers) == 1 // Kubernetes' own
	})
	require.NoError(t, err)
	require.Len(t, s.driver.Volumes(), 1)
	policy("Delete")
	require.NoError(t, s.WaitVolumeGone(ctx, volume.Name))
	require.Empty(t, s.driver.Volumes())
}

func TestVolumeOfAClassThatWaitsIsMadeWhereTheSchedulerPutsThePod(t *testing.T) {
	ctx := deadline(t)
	const zone = corev1.LabelTopologyZone
	s := newEnv(ctx, t, csi.Options{Topology: zone}, testenv.WhenUsed)
	kubelet, err := node.Start(ctx, plane.Admin(), node.Options{Name: s.name, Root: t.TempDir(), Labels: map[string]string{zone: "z1"}})
	require.NoError(t, err)
	t.Cleanup(kubelet.Stop)
	_, err = s.CSIClaim(ctx, "data", s.name)
	require.NoError(t, err)
	s.said(ctx, t, "data", "WaitForFirstConsumer")
	require.Empty(t, s.driver.Volumes())

	_, err = s.SourcePod(ctx, "app", "", testenv.ClaimVolume("v", "data"))
	require.NoError(t, err)
	pod, err := s.WaitPod(ctx, s.Apps, "app", testenv.Ready)
	require.NoError(t, err)
	require.Equal(t, s.name, pod.Spec.NodeName)
	claim, err := s.WaitClaim(ctx, s.Apps, "data", testenv.Bound)
	require.NoError(t, err)
	volume, err := s.Kube.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	require.NoError(t, err)
	want := []corev1.NodeSelectorRequirement{{Key: zone, Operator: corev1.NodeSelectorOpIn, Values: []string{"z1"}}}
	require.Equal(t, want, volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions)
}

func TestClaimWithASelectorIsRefused(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, csi.Options{})
	_, err := s.TargetClaim(ctx, "target", s.name)
	require.NoError(t, err)
	require.Contains(t, s.said(ctx, t, "target", "ProvisioningFailed").Message, "claim Selector is not supported")
	require.Empty(t, s.driver.Volumes())
}

func TestFailedProvisioningIsReportedAndRetried(t *testing.T) {
	ctx := deadline(t)
	var broken atomic.Bool
	broken.Store(true)
	s := newEnv(ctx, t, csi.Options{Fault: func(_ context.Context, call csi.Call) error {
		if broken.Load() && call.Verb == csi.CreateVolume {
			return errors.New("the array is full for " + call.Object)
		}
		return nil
	}})
	_, err := s.CSIClaim(ctx, "data", s.name)
	require.NoError(t, err)
	want := `failed to provision volume with StorageClass "` + s.name + `": the array is full for ` + s.Apps + "/data"
	require.Equal(t, want, s.said(ctx, t, "data", "ProvisioningFailed").Message)
	broken.Store(false)
	_, err = s.WaitClaim(ctx, s.Apps, "data", testenv.Bound)
	require.NoError(t, err)
}

func TestDriverThatIsStoppedDoesNothing(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, csi.Options{})
	s.driver.Stop()
	_, err := s.CSIClaim(ctx, "data", s.name)
	require.NoError(t, err)
	s.said(ctx, t, "data", "ExternalProvisioning") // the volume controller waits for the provisioner in vain
	require.Empty(t, s.driver.Volumes())

	requeue, err := csi.Start(ctx, plane.Admin(), csi.Options{Driver: s.driver.Name(), Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(requeue.Stop)
	claim, err := s.WaitClaim(ctx, s.Apps, "data", testenv.Bound)
	require.NoError(t, err)
	require.Len(t, requeue.Volumes(), 1)
	_, err = s.Snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, "none", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
	require.NotEmpty(t, claim.Spec.VolumeName)
	_, err = csi.Start(ctx, plane.Admin(), csi.Options{})
	require.ErrorContains(t, err, "set Options.Dir")
}
