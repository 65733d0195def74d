package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// impatient has agents report at once what a clean-up waits for.
func impatient(options *agent.Options) { options.Limits.CleanUpWarning = 0 }

func TestACleanUpThatWaitsForItsDriverSaysSoOnKubernetes(t *testing.T) {
	repaired := make(chan struct{})
	v := newEnv(t, time.Minute).volumes(csi.Options{Fault: func(_ context.Context, call csi.Call) error {
		if call.Verb != csi.DeleteSnapshot {
			return nil
		}
		select {
		case <-repaired:
			return nil
		default:
			return errors.New("the array is busy")
		}
	}})
	v.start(impatient)
	upload, handle := v.uploads("data")
	v.reaches(testenv.DataUpload, upload, testenv.InProgress)
	require.NoError(t, v.Transfers(testenv.DataUpload).Cancel(v.soon(), upload))
	v.says("CleanUpWaits", "kubectl describe volumesnapshotcontent "+upload)
	viewer := v.viewer(true)
	require.Contains(t, v.prints(viewer, "explain", "du/"+upload), "kubectl describe volumesnapshotcontent "+upload)
	require.Contains(t, v.prints(viewer, "status"), "its snapshot is not deleted yet")

	close(repaired)
	v.uploaded(upload, handle, testenv.Canceled)
	require.Equal(t, 1, strings.Count(strings.Join(v.eventsOf(upload), " "), "CleanUpWaits"))
}

// The sidecar deletes a snapshot only if it has found it, or if the cleanup names it.
func TestASnapshotThatItsDriverDoesNotFindIsDeletedWithItsTransfer(t *testing.T) {
	v := newEnv(t, time.Minute).volumes(csi.Options{Fault: func(_ context.Context, call csi.Call) error {
		if call.Verb == csi.GetSnapshot {
			return errors.New("the array was replaced")
		}
		return nil
	}})
	v.start()
	upload, handle := v.uploads("data")
	_, err := v.WaitContent(v.soon(), upload, func(c *snapshotv1.VolumeSnapshotContent) bool {
		return c.Status != nil && c.Status.Error != nil
	})
	require.NoError(t, err)
	require.NoError(t, v.Transfers(testenv.DataUpload).Cancel(v.soon(), upload))
	v.uploaded(upload, handle, testenv.Canceled)
	v.noSnapshots()
	v.nothingLeft()
}

func retains(class *storagev1.StorageClass) {
	class.ReclaimPolicy = new(corev1.PersistentVolumeReclaimRetain)
}

// TestVolumesOfAClassThatRetainsThemAreDeletedWithTheirTransfer has a class whose volumes nobody would ever delete.
func TestVolumesOfAClassThatRetainsThemAreDeletedWithTheirTransfer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end func(v *env, upload string) testenv.Phase
	}{
		"that completes": {func(*env, string) testenv.Phase { return testenv.Completed }},
		"that is canceled": {func(v *env, upload string) testenv.Phase {
			v.reaches(testenv.DataUpload, upload, testenv.InProgress)
			v.says("Data-Path-Started", upload)
			require.NoError(v, v.Transfers(testenv.DataUpload).Cancel(v.soon(), upload))
			return testenv.Canceled
		}},
	} {
		t.Run(name, func(t *testing.T) {
			works := 50 * time.Millisecond
			if name == "that is canceled" {
				works = time.Minute
			}
			v := newEnv(t, works).volumes(csi.Options{}, retains)
			v.start()
			upload, handle := v.uploads("data")
			v.uploaded(upload, handle, test.end(v, upload))
			v.noSnapshots()
			v.nothingLeft()
			v.onlyTheSource()
		})
	}
}

func TestADeliveredVolumeOfAClassThatRetainsThemIsRetained(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{}, retains)
	v.start()
	name := v.download(v.target())
	v.settles(testenv.DataDownload, name, testenv.Completed)
	target, err := v.WaitClaim(v.soon(), v.Apps, "restored", testenv.Bound)
	require.NoError(t, err)
	volume, err := v.Kube.CoreV1().PersistentVolumes().Get(v.soon(), target.Spec.VolumeName, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, corev1.PersistentVolumeReclaimRetain, volume.Spec.PersistentVolumeReclaimPolicy)
	require.NotContains(t, volume.Annotations, api.AnnotationReclaimPolicy)
	require.Equal(t, target.UID, volume.Spec.ClaimRef.UID)
	v.nothingLeft()
}

// TestASnapshotThatIsHeldByItsCloneIsDeletedAfterIt has a driver that clones by copy-on-write: it does not delete a
// snapshot while a volume made of it exists.
func TestASnapshotThatIsHeldByItsCloneIsDeletedAfterIt(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{ClonesHold: true})
	v.start()
	upload, handle := v.uploads("data")
	v.uploaded(upload, handle, testenv.Completed)
	v.noSnapshots()
	v.nothingLeft()
	v.onlyTheSource()
}

// onlyTheSource waits until the volumes that were made for movers are gone, and wants the driver to have no other.
func (s *env) onlyTheSource() {
	require.NoError(s, testenv.WaitGone(s.soon(), s.Kube.CoreV1().PersistentVolumes(), metav1.ListOptions{}, func(object runtime.Object) bool {
		volume, ok := object.(*corev1.PersistentVolume)
		return ok && volume.Spec.ClaimRef != nil && volume.Spec.ClaimRef.Namespace == s.Namespace
	}))
	require.Len(s, s.Driver.Volumes(), 1)
}
