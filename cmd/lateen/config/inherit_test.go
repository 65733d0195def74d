package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
)

func hostPath(name, path string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}
}

// velerosTemplate returns the pod template of Velero's own DaemonSet, with every addition of a cloud provider.
func velerosTemplate() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{"role": "node-agent", "azure.workload.identity/use": "true"},
			Annotations: map[string]string{"iam.amazonaws.com/role": "backup", "checksum/config": "1"},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: "velero",
			PriorityClassName:  "system-node-critical",
			HostNetwork:        true,
			NodeSelector:       map[string]string{"a": "b"},
			DNSPolicy:          corev1.DNSClusterFirst,
			DNSConfig:          &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}},
			ImagePullSecrets:   []corev1.LocalObjectReference{{Name: "registry"}},
			Tolerations: []corev1.Toleration{
				{Key: "dedicated", Operator: corev1.TolerationOpExists},
				{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists},
				{Key: "kubernetes.azure.com/scalesetpriority", Value: "spot", Effect: corev1.TaintEffectNoSchedule},
				{Key: "CriticalAddonsOnly", Value: "second"},
			},
			InitContainers: []corev1.Container{{Name: "wait"}},
			Volumes: []corev1.Volume{
				hostPath("host-plugins", "/data/kubelet/plugins"), hostPath("host-pods", "/data/kubelet/pods"),
				{Name: "scratch"}, {Name: "cloud-credentials"},
			},
			Containers: []corev1.Container{{
				Name: "node-agent", Image: "velero/velero:v1.18.3", Command: []string{"/velero"},
				Args:    []string{"node-agent", "server", "--log-level=debug", "--features=", "--log-format", "json"},
				Env:     []corev1.EnvVar{{Name: "NODE_NAME"}, {Name: "VELERO_NAMESPACE"}, {Name: "VELERO_SCRATCH_DIR", Value: "/scratch"}},
				EnvFrom: []corev1.EnvFromSource{{Prefix: "P_"}},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "host-pods", MountPath: "/host_pods"}, {Name: "host-plugins", MountPath: "/var/lib/kubelet/plugins"},
					{Name: "scratch", MountPath: "/scratch"}, {Name: "cloud-credentials", MountPath: "/credentials"},
				},
			}},
		},
	}
}

// agentsPlacement returns Velero's DaemonSet with all that may place its pods.
func agentsPlacement() corev1.PodTemplateSpec {
	agents := velerosTemplate()
	agents.Spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"gpu"}}},
			}}},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1}},
		},
		PodAffinity: &corev1.PodAffinity{},
	}
	return agents
}

func TestInheritSharesNothingWithTheTemplate(t *testing.T) {
	template := agentsPlacement()
	got, err := config.Inherit(template)
	require.NoError(t, err)
	config.AddPlacement(&got, template)
	got.Volumes[0].Name, got.Env[2].Value, got.DNSConfig.Nameservers[0] = "x", "x", "x"
	got.AgentNodeSelector["c"], got.AgentTolerations[0].Key = "d", "x"
	got.AgentAffinity.NodeSelectorTerms[0].MatchExpressions[0].Key = "x"
	require.Equal(t, agentsPlacement(), template)
}

func TestInheritLogArguments(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		want      []string
		message   string
	}{
		"none are none":                     {arguments: []string{"node-agent", "server"}},
		"one token stays one":               {arguments: []string{"--log-level=debug"}, want: []string{"--log-level=debug"}},
		"two tokens become one":             {arguments: []string{"--log-level", "debug", "x"}, want: []string{"--log-level=debug"}},
		"an empty value is a value":         {arguments: []string{"--log-format="}, want: []string{"--log-format="}},
		"a longer name is another flag":     {arguments: []string{"--log-levels=x", "--log-format-x", "y"}},
		"the last one without a value":      {arguments: []string{"server", "--log-level"}, message: "--log-level has no value"},
		"the only argument without value":   {arguments: []string{"--log-format"}, message: "--log-format has no value"},
		"both forms may stand side by side": {arguments: []string{"--log-format", "json", "--log-level=info"}, want: []string{"--log-format=json", "--log-level=info"}},
	} {
		t.Run(name, func(t *testing.T) {
			template := velerosTemplate()
			template.Spec.Containers[0].Args = test.arguments
			got, err := config.Inherit(template)
			if test.message != "" {
				require.ErrorContains(t, err, test.message)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got.LogArgs)
		})
	}
}

func TestInheritNeedsOneContainer(t *testing.T) {
	for _, count := range []int{0, 2} {
		template := velerosTemplate()
		template.Spec.Containers = make([]corev1.Container, count)
		_, err := config.Inherit(template)
		require.ErrorContains(t, err, "want 1")
		require.ErrorContains(t, err, "--mover-template")
	}
}

func TestHostPods(t *testing.T) {
	require.Equal(t, "/data/kubelet/pods", config.HostPods(velerosTemplate()))
	require.Empty(t, config.HostPods(corev1.PodTemplateSpec{}))
	elsewhere := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "host-pods"}}}}
	require.Empty(t, config.HostPods(elsewhere), "only a directory of the host counts")
}
