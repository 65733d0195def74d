package startup_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

func TestLoadOfTheMoversIdentity(t *testing.T) {
	for name, test := range map[string]struct {
		arguments      []string
		missing        bool // there is no server
		requests       int  // expected GETs of Deployments
		image, account string
		problem, fails string
	}{
		"that of the server":          {image: "velero:server", account: "velero-server", requests: 1},
		"that of the flags":           {arguments: []string{"--mover-image=mine:1", "--mover-service-account=mine"}, missing: true, image: "mine:1", account: "mine"},
		"the image of the flag alone": {arguments: []string{"--mover-image=mine:1"}, image: "mine:1", account: "velero-server", requests: 1},
		"its ServiceAccount alone":    {arguments: []string{"--mover-service-account=mine"}, image: "velero:server", account: "mine", requests: 1},
		"without server the image is the template's": {
			arguments: []string{"--mover-service-account=mine"}, missing: true, image: "lateen:agent", account: "mine", problem: "--mover-image", requests: 1,
		},
		"template and server are missing": {arguments: []string{"--mover-template=deployment/velero"}, missing: true, fails: "velero/velero: it does not exist"},
		"without server another Deployment has both": {
			arguments: []string{"--mover-template=deployment/other"}, missing: true, image: "other:1", account: "other", problem: "ServiceAccount other", requests: 2,
		},
		"without server the flag comes first": {
			arguments: []string{"--mover-template=deployment/other", "--mover-image=x:1"}, missing: true, image: "x:1", account: "other", problem: "x:1", requests: 2,
		},
		"without server it is not the agent's own": {missing: true, fails: "--mover-service-account"},
	} {
		t.Run(name, func(t *testing.T) {
			client := installation(fullConfig)
			requests := fault(client, "deployments", 0, nil)
			if test.missing {
				require.NoError(t, client.AppsV1().Deployments("velero").Delete(t.Context(), "velero", metav1.DeleteOptions{}))
			}
			got, err := startup.Load(t.Context(), client, options(t, test.arguments...), newHasty())
			if test.fails != "" {
				require.ErrorContains(t, err, test.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.image, got.Templates[corev1.Linux].Image)
			require.Equal(t, test.account, got.Templates[corev1.Linux].ServiceAccount)
			require.Equal(t, "/data/kubelet/pods", got.PodsDir)
			require.Equal(t, test.requests, *requests)
			if test.problem == "" {
				require.Empty(t, got.Problems)
				return
			}
			require.Len(t, got.Problems, 1)
			require.Equal(t, config.SectionMoverTemplate, got.Problems[0].Section)
			require.Contains(t, got.Problems[0].Message, test.problem)
		})
	}
}

// windowsAgents returns the DaemonSet of Velero's agents on Windows.
func windowsAgents() *appsv1.DaemonSet {
	template := workload("velero:windows", "velero")
	template.Spec.NodeSelector, template.Spec.Tolerations = nil, []corev1.Toleration{{Key: "os", Value: "windows"}}
	template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "WINDOWS"}}
	template.Spec.Volumes[1].HostPath.Path = `C:\kubelet\pods`
	return &appsv1.DaemonSet{
		ObjectMeta: meta("node-agent-windows"), Spec: appsv1.DaemonSetSpec{Template: template}, Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 7},
	}
}

func TestLoadOnAWindowsNode(t *testing.T) {
	client := installation("", changed("node-1", func(node *corev1.Node) { node.Labels = map[string]string{"kubernetes.io/os": "windows"} }))
	requests := fault(client, "daemonsets", 0, nil)
	_, err := startup.Load(t.Context(), client, options(t), newHasty())
	require.ErrorContains(t, err, "daemonsets velero/node-agent-windows")
	require.Equal(t, 2, *requests, "each DaemonSet once")

	require.NoError(t, client.Tracker().Add(windowsAgents()))
	got, err := startup.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.Equal(t, corev1.Windows, got.Node.OS)
	require.Equal(t, `C:\kubelet\pods`, got.PodsDir)
	require.Len(t, got.Templates, 2)
	require.Equal(t, config.Defaults(), got.Config)
	require.Len(t, got.Problems, 1, "there is no ConfigMap")
	require.NoError(t, client.AppsV1().DaemonSets("velero").Delete(t.Context(), "node-agent", metav1.DeleteOptions{}))
	_, err = startup.Load(t.Context(), client, options(t), newHasty())
	require.ErrorContains(t, err, "find daemonsets velero/node-agent: ")
}

func TestLoadOfTemplatesByOperatingSystem(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		env       string // the first variable of movers on Windows
		workloads int
	}{
		"those of the agents":                                {env: "WINDOWS", workloads: 3},
		"that of the server, where agents run as they did":   {arguments: []string{"--mover-template=deployment/velero"}, env: "NODE_NAME", workloads: 3},
		"that of another workload, where agents run as well": {arguments: []string{"--mover-template=deployment/other"}, env: "NODE_NAME", workloads: 4},
	} {
		t.Run(name, func(t *testing.T) {
			client := installation("")
			require.NoError(t, client.Tracker().Add(windowsAgents()))
			requests := fault(client, "*", 0, nil)
			got, err := startup.Load(t.Context(), client, options(t, append(test.arguments, "--node-agent-configmap=")...), newHasty())
			require.NoError(t, err)
			require.Empty(t, got.Problems, "no ConfigMap is named")
			require.Equal(t, config.Defaults(), got.Config)
			require.False(t, got.Priority.FallsBack())
			require.Equal(t, 507, got.Agents)

			linux, windows := got.Templates[corev1.Linux], got.Templates[corev1.Windows]
			require.Equal(t, map[string]string{"a": "b"}, linux.AgentNodeSelector)
			require.Len(t, linux.AgentTolerations, 4)
			require.Empty(t, windows.AgentNodeSelector)
			require.Equal(t, []corev1.Toleration{{Key: "os", Value: "windows"}}, windows.AgentTolerations)
			require.Equal(t, test.env, windows.Env[0].Name)
			require.Equal(t, "NODE_NAME", linux.Env[0].Name)
			for _, template := range got.Templates {
				require.Equal(t, "velero:server", template.Image)
				require.Equal(t, "velero-server", template.ServiceAccount)
			}
			require.Equal(t, "/data/kubelet/pods", got.PodsDir, "that of the node's own operating system")
			require.Equal(t, 3+test.workloads, *requests, "the node, two API versions, and each workload once")
		})
	}
}

func TestLoadOnLinuxIgnoresAnInvalidWindowsTemplate(t *testing.T) {
	client, agents := installation(fullConfig), windowsAgents()
	agents.Spec.Template.Spec.Containers = append(agents.Spec.Template.Spec.Containers, corev1.Container{Name: "proxy"})
	require.NoError(t, client.Tracker().Add(agents))
	got, err := startup.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.NotContains(t, got.Templates, corev1.Windows)
	require.Len(t, got.Problems, 1)
	require.Equal(t, config.SectionMoverTemplate, got.Problems[0].Section)
	require.Contains(t, got.Problems[0].Message, "no movers on Windows nodes: inherit from daemonsets velero/node-agent-windows: pod template has 2 containers")
}

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
	got, err := startup.Inherit(template)
	require.NoError(t, err)
	startup.AddPlacement(&got, template)
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
		"two tokens become one":             {arguments: []string{"--log-level", "debug", "x"}, want: []string{"--log-level=debug"}},
		"an empty value is a value":         {arguments: []string{"--log-format="}, want: []string{"--log-format="}},
		"a longer name is another flag":     {arguments: []string{"--log-levels=x", "--log-format-x", "y"}},
		"the last one without a value":      {arguments: []string{"server", "--log-level"}, message: "--log-level has no value"},
		"the only argument without value":   {arguments: []string{"--log-format"}, message: "--log-format has no value"},
		"both forms may stand side by side": {arguments: []string{"--log-format", "json", "--log-level=info"}, want: []string{"--log-format=json", "--log-level=info"}},
	} {
		template := velerosTemplate()
		template.Spec.Containers[0].Args = test.arguments
		got, err := startup.Inherit(template)
		if test.message != "" {
			require.ErrorContains(t, err, test.message, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, test.want, got.LogArgs, name)
	}
}

func TestPodsDir(t *testing.T) {
	require.Equal(t, "/data/kubelet/pods", startup.PodsDir(velerosTemplate()))
	require.Equal(t, "/var/lib/kubelet/pods", startup.PodsDir(corev1.PodTemplateSpec{}))
	elsewhere := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "host-pods"}}}}
	require.Equal(t, "/var/lib/kubelet/pods", startup.PodsDir(elsewhere), "only a directory of the host counts")
}

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

// mount adds a volume to a template.
func mount(template *corev1.PodTemplateSpec, name, path string, source corev1.VolumeSource) {
	template.Spec.Volumes = append(template.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	container := &template.Spec.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: true})
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
			c.Env = []corev1.EnvVar{{Name: "AWS_REGION", Value: "eu-central-1"}}
		}},
		"eks-token-without-webhook": {change: func(p *corev1.PodTemplateSpec, c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "AWS_ROLE_ARN", Value: "arn:aws:iam::1:role/velero"}, {Name: "AWS_WEB_IDENTITY_TOKEN_FILE", Value: "/var/run/aws/token"}}
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
			c.Env = []corev1.EnvVar{{Name: "AZURE_CREDENTIALS_FILE", Value: "/credentials/cloud"}}
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
			c.Env = []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://proxy.example:3128"}, {Name: "NO_PROXY", Value: ".svc,10.0.0.0/8"}}
			c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "proxy"}}}}
		}},
		"private-ca": {change: func(p *corev1.PodTemplateSpec, c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "SSL_CERT_DIR", Value: "/etc/company-ca"}}
			mount(p, "company-ca", "/etc/company-ca", corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "company-ca"}},
			})
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mirror"}}
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			template, err := startup.Inherit(serverOn(test.change))
			require.NoError(t, err)
			startup.AddPlacement(&template, corev1.PodTemplateSpec{Spec: test.agents})
			spec := objects.MoverSpec{
				Name: "nightly-1", Namespace: "velero", UID: "7a2d", GVK: api.PodVolumeBackup().GVK, PodLabel: api.PodVolumeBackup().PodLabel,
				ExposingNode: "n1", Command: []string{"pod-volume", "backup"}, Source: objects.Source{PodVolume: &objects.PodVolumeSource{Volume: "data"}},
			}
			facts := objects.VolumeInfo{OS: corev1.Linux, HostPath: "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/data/mount", Node: "n1"}
			if test.agents.NodeSelector != nil { // only the mover of a snapshot may run on any node of agents
				spec.GVK, spec.PodLabel, spec.Command = api.DataUpload().GVK, api.DataUpload().PodLabel, []string{"data-mover", "backup"}
				spec.Source, facts.Node, facts.HostPath = objects.Source{Snapshot: &objects.SnapshotSource{}}, "", ""
			}
			got, err := yaml.Marshal(objects.PlanOf(spec, facts, template, objects.Settings{Privileged: test.privileged}).Pod)
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
