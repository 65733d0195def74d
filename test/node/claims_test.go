package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// simulated returns a volume of a simulated CSI driver with its bytes in dir.
func simulated(dir string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: "csi.example.com", VolumeHandle: dir, VolumeAttributes: map[string]string{"dir": dir},
	}}
}

func TestVolumesOfASimulatedDriverHaveItsBytes(t *testing.T) {
	for _, mode := range []corev1.PersistentVolumeMode{corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock} {
		t.Run(string(mode), func(t *testing.T) {
			ctx := deadline(t)
			s := newEnv(ctx, t, node.Options{})
			bytes := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(bytes, "file"), []byte("b"), 0o600))
			_, err := s.Claim(ctx, "data", simulated(bytes), mode)
			require.NoError(t, err)
			_, err = s.SourcePod(ctx, "app", s.node.Name(), testenv.ClaimVolume("v", "data"))
			require.NoError(t, err)
			pod, err := s.WaitPod(ctx, s.Apps, "app", testenv.Ready)
			require.NoError(t, err)
			dir, err := s.node.VolumeDir(ctx, pod, "v")
			require.NoError(t, err)
			require.Equal(t, mode == corev1.PersistentVolumeBlock, strings.Contains(dir, "/volumeDevices/"))
			require.FileExists(t, filepath.Join(dir, "file"))

			s.mover(ctx, t, "m1", func(pod *corev1.Pod) {
				pod.Spec.Volumes = []corev1.Volume{hostPath("v", dir, corev1.HostPathDirectory)}
			})
			s.pod(ctx, t, "m1", testenv.Ready)
			require.NoError(t, s.Kube.CoreV1().Pods(s.Apps).Delete(ctx, "app", metav1.DeleteOptions{}))
			require.NoError(t, s.WaitPodGone(ctx, s.Apps, "app"))
			require.NoFileExists(t, dir)
			require.FileExists(t, filepath.Join(bytes, "file"), "what was linked is not the pod's")
		})
	}
}

func hostPath(name, path string, kind corev1.HostPathType) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}}
}

func TestPodWaitsForAClaimToBeBound(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{})
	_, err := s.TargetClaim(ctx, "late", "", func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Selector, claim.Spec.VolumeName = nil, s.Apps+"-late"
	})
	require.NoError(t, err)
	_, err = s.SourcePod(ctx, "app", s.node.Name(), testenv.ClaimVolume("v", "late"))
	require.NoError(t, err)
	_, err = s.SourcePod(ctx, "beside", s.node.Name())
	require.NoError(t, err)
	_, err = s.WaitPod(ctx, s.Apps, "beside", testenv.Ready)
	require.NoError(t, err)
	pod, err := s.Kube.CoreV1().Pods(s.Apps).Get(ctx, "app", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, corev1.PodPending, pod.Status.Phase)

	bytes := t.TempDir()
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.Apps + "-late"},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: simulated(bytes), Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:    &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: s.Apps, Name: "late"},
		},
	}
	_, err = s.Kube.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
	require.NoError(t, err)
	pod, err = s.WaitPod(ctx, s.Apps, "app", testenv.Ready)
	require.NoError(t, err)
	dir, err := s.node.VolumeDir(ctx, pod, "v")
	require.NoError(t, err)
	target, err := os.Readlink(dir)
	require.NoError(t, err)
	require.Equal(t, bytes, target)
}

func TestVolumeThatIsNotThereIsComplainedOf(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{})
	s.mover(ctx, t, "m1", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{hostPath("v", "/no/such/directory", corev1.HostPathDirectory)}
	})
	s.pod(ctx, t, "m1", waits("ContainerCreating"))
	reported, err := s.WaitEvent(ctx, func(event *corev1.Event) bool {
		return event.InvolvedObject.Name == "m1" && event.Reason == "FailedMount"
	})
	require.NoError(t, err)
	require.Equal(t, corev1.EventTypeWarning, reported.Type)
	require.Equal(t, `MountVolume.SetUp failed for volume "v": hostPath type check failed: /no/such/directory is not a directory`, reported.Message)
}
