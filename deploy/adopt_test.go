package deploy_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/deploy"
)

func TestAdoptedAgentsKeepTheHostPathOfVeleros(t *testing.T) {
	for name, test := range map[string]struct {
		mounts []corev1.VolumeMount
		want   []string
	}{
		"under the kubelet's directory": {
			mounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}, {Name: deploy.HostPodsVolume, MountPath: "/host_pods"}},
			want:   []string{"node-agent", "--features=EnableCSI", "--host-path=/host_pods", "--mover-image=x"},
		},
		"or nowhere, where that is not mounted": {want: []string{"node-agent", "--features=EnableCSI", "--mover-image=x"}},
	} {
		t.Run(name, func(t *testing.T) {
			velero := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Command: []string{"/velero"}, Args: []string{"node-agent", "server", "--features=EnableCSI"}, VolumeMounts: test.mounts,
			}}}}
			adopted, err := deploy.Adopt(velero, deploy.Adoption{Image: "lateen", Args: []string{"--mover-image=x"}})
			require.NoError(t, err)
			require.Equal(t, test.want, adopted.Spec.Containers[0].Args)
		})
	}
}
