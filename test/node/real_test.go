package node_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// The volume belongs to a simulated driver. A pod reaches it as a claim, or as a hostPath through the link in another
// pod's directory.
func TestRealContainerOwnsWhatItMounts(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	tests := map[string]func(link string) corev1.Volume{
		"of a claim":            func(string) corev1.Volume { return testenv.ClaimVolume("data", "data") },
		"by a path of the host": func(link string) corev1.Volume { return hostPath("data", link, corev1.HostPathDirectory) },
	}
	for name, volume := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			runner := node.Real{
				Config: plane.Admin(), Velero: "/no/such/binary", Images: map[string]string{"velero:x": self}, Binds: libraries(),
			}
			s := newEnv(ctx, t, node.Options{Runner: node.Movers{Runner: runner}})
			bytes := t.TempDir()
			file := filepath.Join(bytes, "file")
			require.NoError(t, os.WriteFile(file, nil, 0o600))
			_, err := s.Claim(ctx, "data", simulated(bytes), corev1.PersistentVolumeFilesystem)
			require.NoError(t, err)
			_, err = s.SourcePod(ctx, "app", s.node.Name(), testenv.ClaimVolume("data", "data"))
			require.NoError(t, err)
			app, err := s.WaitPod(ctx, s.Apps, "app", testenv.Ready)
			require.NoError(t, err)
			link, err := s.node.VolumeDir(ctx, app, "data")
			require.NoError(t, err)

			_, err = s.Kube.CoreV1().Secrets(s.Apps).Create(ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "shapes"}, StringData: map[string]string{"SHAPE": "round"},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
			require.NoError(t, s.inApps().ConfigMap(ctx, "settings", map[string]string{"COLOR": "red"}))
			apps := *s
			apps.Env = s.inApps() // the namespace of the claim
			apps.mover(ctx, t, "m1", func(pod *corev1.Pod) {
				pod.Spec.Volumes = []corev1.Volume{volume(link)}
				container := &pod.Spec.Containers[0]
				container.Command = []string{"/velero"}
				container.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
				container.Env = []corev1.EnvVar{{Name: playing, Value: "owner"}}
				container.EnvFrom = []corev1.EnvFromSource{
					{Prefix: "PREFIX_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}},
					{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "shapes"}}},
					{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "nope"}, Optional: new(true)}},
				}
			})
			ended := apps.pod(ctx, t, "m1", in(corev1.PodSucceeded))
			require.Equal(t, "red round", ended.Status.ContainerStatuses[0].State.Terminated.Message)
			info, err := os.Stat(file)
			require.NoError(t, err)
			owner, ok := info.Sys().(*syscall.Stat_t)
			require.True(t, ok)
			require.EqualValues(t, 1234, owner.Uid)
		})
	}
}

// inApps returns the same environment for the namespace of the backed-up pods.
func (s *env) inApps() *testenv.Env {
	w := *s.Env
	w.Namespace = s.Apps
	return &w
}
