package node_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestVolumesAreWhereAKubeletHasThem(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{})
	claims := map[string]struct {
		source corev1.PersistentVolumeSource
		mode   corev1.PersistentVolumeMode
	}{
		"files": {corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h1"}}, corev1.PersistentVolumeFilesystem},
		"block": {corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h2"}}, corev1.PersistentVolumeBlock},
		"nfs":   {corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs", Path: "/x"}}, corev1.PersistentVolumeFilesystem},
		"local": {corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/x"}}, corev1.PersistentVolumeFilesystem},
		"disk":  {corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/dev/x"}}, corev1.PersistentVolumeBlock},
		"host":  {corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv/x"}}, corev1.PersistentVolumeFilesystem},
	}
	volumes := []corev1.Volume{
		testenv.EmptyDir("cache"),
		{Name: "inline", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}},
		{Name: "share", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs", Path: "/x"}}},
		{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}},
		{Name: "key", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key"}}},
		{Name: "hosts", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv/hosts"}}},
	}
	for name, claim := range claims {
		_, err := s.Claim(ctx, name, claim.source, claim.mode)
		require.NoError(t, err)
		volumes = append(volumes, testenv.ClaimVolume("my-"+name, name))
	}
	_, err := s.Kube.CoreV1().Secrets(s.Apps).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "key"}, Data: map[string][]byte{"password": []byte("p")},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = s.Kube.CoreV1().ConfigMaps(s.Apps).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"color": "red"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = s.SourcePod(ctx, "app", s.node.Name(), volumes...)
	require.NoError(t, err)
	pod, err := s.WaitPod(ctx, s.Apps, "app", testenv.Ready)
	require.NoError(t, err)

	below := filepath.Join(s.node.PodsDir(), string(pod.UID))
	want := map[string]string{
		"cache":    below + "/volumes/kubernetes.io~empty-dir/cache",
		"inline":   below + "/volumes/kubernetes.io~csi/inline/mount",
		"share":    below + "/volumes/kubernetes.io~nfs/share",
		"settings": below + "/volumes/kubernetes.io~configmap/settings",
		"key":      below + "/volumes/kubernetes.io~secret/key",
		"my-files": below + "/volumes/kubernetes.io~csi/" + s.Apps + "-files/mount",
		"my-block": below + "/volumeDevices/kubernetes.io~csi/" + s.Apps + "-block",
		"my-nfs":   below + "/volumes/kubernetes.io~nfs/" + s.Apps + "-nfs",
		"my-local": below + "/volumes/kubernetes.io~local-volume/" + s.Apps + "-local",
		"my-disk":  below + "/volumeDevices/kubernetes.io~local-volume/" + s.Apps + "-disk",
	}
	for name, dir := range want {
		found, err := s.node.VolumeDir(ctx, pod, name)
		require.NoError(t, err)
		require.Equal(t, dir, found)
		require.DirExists(t, dir)
	}
	// the host's directory, which is not created
	for name, dir := range map[string]string{"my-host": "/srv/x", "hosts": "/srv/hosts"} {
		found, err := s.node.VolumeDir(ctx, pod, name)
		require.NoError(t, err)
		require.Equal(t, dir, found)
		require.NoDirExists(t, dir)
	}
	for file, content := range map[string]string{"settings/color": "red", "key/password": "p"} {
		text, err := os.ReadFile(filepath.Join(want[filepath.Dir(file)], filepath.Base(file)))
		require.NoError(t, err)
		require.Equal(t, content, string(text))
	}
	_, err = s.node.VolumeDir(ctx, pod, "nope")
	require.ErrorContains(t, err, "has no volume nope")
}
