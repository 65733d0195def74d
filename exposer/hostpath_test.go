package exposer

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func podWith(volume corev1.VolumeSource) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "db", UID: "pod-uid"},
		Spec:       corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: volume}}},
	}
}

func claimed() corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}
}

func boundClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv1"}}
}

func csiVolume(mode corev1.PersistentVolumeMode) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv1"}, Spec: corev1.PersistentVolumeSpec{
		VolumeMode: &mode, PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}},
	}}
}

func TestLocateDerivesTheSamePathAsTheLookup(t *testing.T) {
	tests := map[string]struct {
		volume corev1.VolumeSource
		mode   corev1.PersistentVolumeMode
		want   location
	}{
		"a claim's files":  {volume: claimed(), mode: corev1.PersistentVolumeFilesystem, want: location{Path: "/host/pods/pod-uid/volumes/kubernetes.io~csi/pv1/mount"}},
		"a claim's device": {volume: claimed(), mode: corev1.PersistentVolumeBlock, want: location{Path: "/host/pods/pod-uid/volumeDevices/kubernetes.io~csi/pv1", Block: true}},
		"a volume without a claim": {
			volume: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
			want:   location{Path: "/host/pods/pod-uid/volumes/kubernetes.io~empty-dir/data"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(boundClaim(), csiVolume(test.mode))
			derived, err := HostPaths{Client: client, PodsDir: "/host/pods"}.locate(t.Context(), podWith(test.volume), "data")
			require.NoError(t, err)
			require.Equal(t, test.want, derived)

			mounted := t.TempDir()
			below, err := filepath.Rel("/host/pods", test.want.Path)
			require.NoError(t, err)
			require.NoError(t, os.MkdirAll(filepath.Join(mounted, below), 0o755))
			found, err := HostPaths{Client: client, PodsDir: "/host/pods", Mounted: mounted}.locate(t.Context(), podWith(test.volume), "data")
			require.NoError(t, err)
			require.Equal(t, derived, found)
		})
	}
}

func TestLocateNamesWhatIsMissing(t *testing.T) {
	emptyDir := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	tests := map[string]struct {
		paths    HostPaths
		pod      *corev1.Pod
		volume   string
		terminal bool
		want     string
	}{
		"no such volume":           {pod: podWith(emptyDir), volume: "other", terminal: true, want: `has no volume "other"`},
		"no such claim":            {pod: podWith(claimed()), volume: "data", terminal: true, want: "get claim app/claim"},
		"a host path":              {pod: podWith(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), volume: "data", terminal: true, want: "not in the kubelet's pods directory"},
		"nothing where it must be": {paths: HostPaths{Mounted: "/nonexistent"}, pod: podWith(emptyDir), volume: "data", want: "got 0 matches [], want 1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.paths.Client = fake.NewClientset()
			_, err := test.paths.locate(t.Context(), test.pod, test.volume)
			require.ErrorContains(t, err, test.want)
			terminal := (*TerminalError)(nil)
			require.Equal(t, test.terminal, errors.As(err, &terminal))
		})
	}
}
