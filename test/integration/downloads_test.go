package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// target makes a claim as Velero's server restores one.
func (s *env) target() *corev1.PersistentVolumeClaim {
	return s.targetOf(s.storageClass)
}

// targetOf is a target of a class that need not exist.
func (s *env) targetOf(class string) *corev1.PersistentVolumeClaim {
	claim, err := s.TargetClaim(s.soon(), "restored", class)
	require.NoError(s, err)
	return claim
}

// download creates a DataDownload into a claim, which need not exist.
func (s *env) download(target *corev1.PersistentVolumeClaim) string {
	restore, err := s.Restore(s.soon(), "nightly")
	require.NoError(s, err)
	created, err := s.DataDownload(s.soon(), restore, target, "snapshot")
	require.NoError(s, err)
	return created.Name
}

// delivered waits for a DataDownload to complete and for its target to have what was restored, as a volume like any other.
func (s *env) delivered(name string) {
	ended := s.settles(testenv.DataDownload, name, testenv.Completed)
	require.EqualValues(s, 1000, ended.Status.Progress.BytesDone)
	require.Empty(s, ended.Status.Message)
	target, err := s.WaitClaim(s.soon(), s.Apps, "restored", testenv.Bound)
	require.NoError(s, err)
	volume, err := s.WaitVolume(s.soon(), target.Spec.VolumeName, func(volume *corev1.PersistentVolume) bool {
		return volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	})
	require.NoError(s, err)
	require.Equal(s, target.UID, volume.Spec.ClaimRef.UID)
	s.restoredTo(ended, s.Driver.VolumeDir(volume.Spec.CSI.VolumeHandle))
	require.NotContains(s, volume.Annotations, api.AnnotationReclaimPolicy)
	require.Subset(s, volume.Labels, target.Spec.Selector.MatchLabels)
	s.nothingLeft()
	s.noConflicts()
}

func TestARestoredVolumeIsDelivered(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond, acknowledged).volumes(csi.Options{})
	history := v.record()
	r := v.start()
	name := v.download(v.target())
	v.delivered(name)
	require.Equal(t, []testenv.Phase{"", "Accepted", "Prepared", "InProgress", "Completed"}, v.path(history, name, "Completed"))
	r.countsEnd("kind", "datadownload", "phase", "Completed", "reason", "completed")
	require.Len(t, v.Driver.Volumes(), 1)
	require.NoError(t, v.Kube.CoreV1().PersistentVolumeClaims(v.Apps).Delete(v.soon(), "restored", metav1.DeleteOptions{}))
	volume := v.Driver.Volumes()[0] // the name of the PersistentVolume too
	require.NoError(t, v.WaitVolumeGone(v.soon(), volume), "it goes with its claim")
	require.Empty(t, v.Driver.Volumes())
}

func TestADownloadWaitsForItsStorageClass(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{})
	v.start()
	late := "late-" + v.Namespace
	name := v.download(v.targetOf(late))
	v.ends(v.transfer(), testenv.Completed)
	require.Zero(t, v.moversMade(name))
	require.NoError(t, v.StorageClass(v.soon(), late, v.Driver.Name()))
	v.delivered(name)
}

func TestADownloadThatCannotBeginFailsAndSaysWhy(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		waits   bool // until the prepare timeout
		class   func(*storagev1.StorageClass)
		target  func(v *env) *corev1.PersistentVolumeClaim
		message string
	}{
		"for want of a consumer": {waits: true, class: testenv.WhenUsed, target: func(v *env) *corev1.PersistentVolumeClaim { return v.target() },
			message: "restored has no consumer"},
		"for want of its claim": {waits: true, target: func(v *env) *corev1.PersistentVolumeClaim {
			return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "never-made", Namespace: v.Apps, UID: "none"}}
		}, message: "never-made does not exist"},
		"for want of its storage class": {waits: true, target: func(v *env) *corev1.PersistentVolumeClaim { return v.targetOf("never-made-" + v.Namespace) },
			message: "storage class never-made-"},
		"because its claim has a volume": {target: func(v *env) *corev1.PersistentVolumeClaim { return v.claim("restored") },
			message: "is already bound to volume pvc-"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{}, func(class *storagev1.StorageClass) {
				if test.class != nil {
					test.class(class)
				}
			})
			v.start(func(options *agent.Options) {
				if test.waits {
					shortWait(options)
				}
			})
			download := v.download(test.target(v))
			ended := v.settles(testenv.DataDownload, download, testenv.Failed)
			require.Contains(t, ended.Status.Message, test.message)
			require.Zero(t, v.moversMade(download))
			v.says("Failed", test.message)
		})
	}
}

func TestADownloadIsCanceledInWhicheverPhaseItIs(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		class func(*storagev1.StorageClass)
		gone  bool
		wait  func(v *env, name string)
	}{
		"waiting for a consumer":        {class: testenv.WhenUsed, wait: func(*env, string) {}},
		"waiting for its storage class": {gone: true, wait: func(*env, string) {}},
		"waiting for its volume": {class: func(class *storagev1.StorageClass) { class.Provisioner = "of-nobody.example.com" },
			wait: func(v *env, name string) { v.moverIs(name, func(*corev1.Pod) bool { return true }) }},
		"being moved": {wait: func(v *env, name string) { v.says("Data-Path-Started", name) }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v := newEnv(t, time.Minute).volumes(csi.Options{}, func(class *storagev1.StorageClass) {
				if test.class != nil {
					test.class(class)
				}
			})
			v.start()
			class := v.storageClass
			if test.gone {
				class = "never-made-" + v.Namespace
			}
			download := v.download(v.targetOf(class))
			test.wait(v, download)
			require.NoError(t, v.Transfers(testenv.DataDownload).Cancel(v.soon(), download))
			v.settles(testenv.DataDownload, download, testenv.Canceled)
			v.nothingLeft()
			require.Empty(t, v.Driver.Volumes())
		})
	}
}

func TestAVolumeThatCannotBeDeliveredIsKeptAndNamed(t *testing.T) {
	v := newEnv(t, 0).volumes(csi.Options{})
	finish := v.work()
	sweep := make(sweepWatcher)
	v.start(sweeps, fixture.Through(sweep.wrap))
	name := v.download(v.target())
	v.reaches(testenv.DataDownload, name, testenv.InProgress)
	require.NoError(t, v.Kube.CoreV1().PersistentVolumeClaims(v.Apps).Delete(v.soon(), "restored", metav1.DeleteOptions{}))
	finish()
	ended := v.settles(testenv.DataDownload, name, testenv.Failed)
	volume := v.Driver.Volumes()[0] // the name of the PersistentVolume too
	require.Contains(t, ended.Status.Message, "restored does not exist")
	require.Contains(t, ended.Status.Message, "kept as PersistentVolume "+volume)
	v.says("Failed", volume)
	require.NoError(t, v.Transfers(testenv.DataDownload).Delete(v.soon(), name))
	v.swept(sweep)
	kept, err := v.WaitVolume(v.soon(), volume, func(volume *corev1.PersistentVolume) bool { return volume.Status.Phase == corev1.VolumeReleased })
	require.NoError(t, err)
	require.Equal(t, corev1.PersistentVolumeReclaimRetain, kept.Spec.PersistentVolumeReclaimPolicy)
	require.Equal(t, name, kept.Labels[api.LabelKept])
	require.Empty(t, kept.OwnerReferences)
	require.NotContains(t, kept.Labels, api.LabelMover)
	require.Equal(t, []string{volume}, v.Driver.Volumes())
}
