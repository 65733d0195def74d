package config_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// serverOn returns the pod template of Velero's Deployment with the additions of a platform.
func serverOn(change func(*corev1.PodTemplateSpec, *corev1.Container)) corev1.PodTemplateSpec {
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		ServiceAccountName: "velero",
		InitContainers:     []corev1.Container{{Name: "plugin", Image: "velero/velero-plugin-for-aws:v1.14.0"}},
		Containers: []corev1.Container{{
			Name: "velero", Image: "velero/velero:v1.18.3", Command: []string{"/velero"}, Args: []string{"server"},
		}},
	}}
	change(&template, &template.Spec.Containers[0])
	return template
}

func variables(pairs ...string) []corev1.EnvVar {
	var all []corev1.EnvVar
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, corev1.EnvVar{Name: pairs[i], Value: pairs[i+1]})
	}
	return all
}

// mount adds a volume to a template.
func mount(template *corev1.PodTemplateSpec, name, path string, source corev1.VolumeSource) {
	template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	container := &template.Spec.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: true})
}

func configMap(name string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

// The movers of docs/platforms.md have what their platform needs, each with a golden file. One template has all that a mover
// may inherit, and all that it must not.
func TestMoversHaveWhatTheirPlatformNeeds(t *testing.T) {
	tests := map[string]struct {
		change     func(*corev1.PodTemplateSpec, *corev1.Container)
		agents     corev1.PodSpec
		privileged bool
	}{
		// Webhook or agent of the cluster recognize the pod by its ServiceAccount.
		"eks": {change: func(_ *corev1.PodTemplateSpec, c *corev1.Container) {
			c.Env = variables("AWS_REGION", "eu-central-1")
		}},
		"eks-token-without-webhook": {change: func(p *corev1.PodTemplateSpec, c *corev1.Container) {
			c.Env = variables("AWS_ROLE_ARN", "arn:aws:iam::1:role/velero", "AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/aws/token")
			mount(p, "aws-token", "/var/run/aws", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
				ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "sts.amazonaws.com", Path: "token", ExpirationSeconds: new(int64(86400))},
			}}}})
		}},
		"kube2iam": {change: func(p *corev1.PodTemplateSpec, _ *corev1.Container) {
			p.Annotations = map[string]string{"iam.amazonaws.com/role": "velero"}
		}},
		"aks": {change: func(p *corev1.PodTemplateSpec, c *corev1.Container) {
			p.Labels = map[string]string{"azure.workload.identity/use": "true"}
			p.Spec.Tolerations = []corev1.Toleration{{
				Key: "kubernetes.azure.com/scalesetpriority", Operator: corev1.TolerationOpEqual, Value: "spot", Effect: corev1.TaintEffectNoSchedule,
			}}
			c.Env = variables("AZURE_CREDENTIALS_FILE", "/credentials/cloud")
			mount(p, "cloud-credentials", "/credentials", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cloud-credentials"}})
		}},
		"gke": {
			change: func(*corev1.PodTemplateSpec, *corev1.Container) {},
			agents: corev1.PodSpec{
				NodeSelector: map[string]string{"iam.gke.io/gke-metadata-server-enabled": "true"},
				Affinity:     &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}},
			},
		},
		"everything": {
			change: func(p *corev1.PodTemplateSpec, _ *corev1.Container) { *p = velerosTemplate() },
			agents: agentsPlacement().Spec,
		},
		"openshift": {change: func(*corev1.PodTemplateSpec, *corev1.Container) {}, privileged: true},
		"proxy": {change: func(_ *corev1.PodTemplateSpec, c *corev1.Container) {
			c.Env = variables("HTTPS_PROXY", "http://proxy.example:3128", "NO_PROXY", ".svc,10.0.0.0/8")
			c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "proxy"}}}}
		}},
		"private-ca": {change: func(p *corev1.PodTemplateSpec, c *corev1.Container) {
			c.Env = variables("SSL_CERT_DIR", "/etc/company-ca")
			mount(p, "company-ca", "/etc/company-ca", configMap("company-ca"))
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mirror"}}
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			template, err := config.Inherit(serverOn(test.change))
			require.NoError(t, err)
			config.AddPlacement(&template, corev1.PodTemplateSpec{Spec: test.agents})
			move := objects.MoverSpec{
				Name: "nightly-1", Namespace: "velero", UID: "7a2d", GVK: api.PodVolumeBackup().GVK, PodLabel: api.PodVolumeBackup().PodLabel,
				ExposingNode: "n1", Command: []string{"pod-volume", "backup"}, Source: objects.Source{PodVolume: &objects.PodVolumeSource{Volume: "data"}},
			}
			facts := objects.VolumeInfo{OS: corev1.Linux, HostPath: "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/data/mount", Node: "n1"}
			if test.agents.NodeSelector != nil { // only the mover of a snapshot may run on any node of agents
				move.GVK, move.PodLabel, move.Command = api.DataUpload().GVK, api.DataUpload().PodLabel, []string{"data-mover", "backup"}
				move.Source, facts.Node, facts.HostPath = objects.Source{Snapshot: &objects.SnapshotSource{}}, "", ""
			}
			got, err := yaml.Marshal(objects.PlanOf(move, facts, template, objects.Settings{Privileged: test.privileged}).Pod)
			require.NoError(t, err)
			golden := filepath.Join("testdata", "platforms", name+".yaml")
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
				require.NoError(t, os.WriteFile(golden, got, 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		})
	}
}
