package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/objects"
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

func TestInheritTakesOnlyWhatMoversNeed(t *testing.T) {
	template := velerosTemplate()
	got, err := config.Inherit(template)
	require.NoError(t, err)
	require.Equal(t, velerosTemplate(), template, "the template itself is not written to")

	require.Equal(t, "velero/velero:v1.18.3", got.Image)
	require.Equal(t, "velero", got.ServiceAccount)
	require.Equal(t, template.Spec.Containers[0].Env, got.Env)
	require.Equal(t, template.Spec.Containers[0].EnvFrom, got.EnvFrom)
	require.Equal(t, []corev1.Volume{{Name: "scratch"}, {Name: "cloud-credentials"}}, got.Volumes)
	require.Equal(t, []corev1.VolumeMount{
		{Name: "scratch", MountPath: "/scratch"}, {Name: "cloud-credentials", MountPath: "/credentials"},
	}, got.VolumeMounts)
	require.Equal(t, corev1.DNSClusterFirst, got.DNSPolicy)
	require.Equal(t, template.Spec.DNSConfig, got.DNSConfig)
	require.Equal(t, template.Spec.ImagePullSecrets, got.ImagePullSecrets)
	require.Equal(t, []string{"--log-level=debug", "--log-format=json"}, got.LogArgs)
	require.Equal(t, map[string]string{"azure.workload.identity/use": "true"}, got.Labels)
	require.Equal(t, map[string]string{"iam.amazonaws.com/role": "backup"}, got.Annotations)
	require.Equal(t, []corev1.Toleration{
		{Key: "kubernetes.azure.com/scalesetpriority", Value: "spot", Effect: corev1.TaintEffectNoSchedule},
		{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists},
	}, got.Tolerations, "the first toleration of each key counts")
}

func TestInheritSharesNothingWithTheTemplate(t *testing.T) {
	template := velerosTemplate()
	got, err := config.Inherit(template)
	require.NoError(t, err)
	got.Volumes[0].Name, got.Env[2].Value, got.DNSConfig.Nameservers[0] = "x", "x", "x"
	require.Equal(t, velerosTemplate(), template)
}

func TestInheritAddsTheCommonEnvironment(t *testing.T) {
	template := velerosTemplate()
	template.Spec.Containers[0].Env = nil
	got, err := config.Inherit(template)
	require.NoError(t, err)
	require.Len(t, got.Env, 2)
	require.Equal(t, "NODE_NAME", got.Env[0].Name)
	require.Equal(t, "spec.nodeName", got.Env[0].ValueFrom.FieldRef.FieldPath)
	require.Equal(t, "VELERO_NAMESPACE", got.Env[1].Name)
	require.Equal(t, "metadata.namespace", got.Env[1].ValueFrom.FieldRef.FieldPath)
}

func TestInheritWithoutTheListedLabelsHasNone(t *testing.T) {
	template := velerosTemplate()
	template.Labels, template.Annotations, template.Spec.Tolerations = nil, map[string]string{"a": "b"}, nil
	got, err := config.Inherit(template)
	require.NoError(t, err)
	require.Nil(t, got.Labels)
	require.Nil(t, got.Annotations)
	require.Nil(t, got.Tolerations)
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

func TestAddPlacementTakesOnlyTheNodesOfAgents(t *testing.T) {
	agents := velerosTemplate()
	required := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kubernetes.io/os", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"windows"}}},
	}}}
	agents.Spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  required,
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1}},
		},
		PodAffinity: &corev1.PodAffinity{},
	}
	got := objects.Template{Image: "kept"}
	config.AddPlacement(&got, agents)
	require.Equal(t, objects.Template{
		Image: "kept", AgentNodeSelector: map[string]string{"a": "b"}, AgentAffinity: required, AgentTolerations: agents.Spec.Tolerations,
	}, got)

	got.AgentNodeSelector["c"], got.AgentTolerations[0].Key = "d", "x"
	got.AgentAffinity.NodeSelectorTerms[0].MatchExpressions[0].Key = "x"
	require.Len(t, agents.Spec.NodeSelector, 1)
	require.Equal(t, "dedicated", agents.Spec.Tolerations[0].Key)
	require.Equal(t, "kubernetes.io/os", required.NodeSelectorTerms[0].MatchExpressions[0].Key, "nothing is shared")
}

func TestAddPlacementIgnoresPodAffinity(t *testing.T) {
	agents := velerosTemplate()
	agents.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}}
	var got objects.Template
	config.AddPlacement(&got, agents)
	require.Nil(t, got.AgentAffinity)
}

func TestHostPods(t *testing.T) {
	require.Equal(t, "/data/kubelet/pods", config.HostPods(velerosTemplate()))
	require.Empty(t, config.HostPods(corev1.PodTemplateSpec{}))
	elsewhere := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "host-pods"}}}}
	require.Empty(t, config.HostPods(elsewhere), "only a directory of the host counts")
}
