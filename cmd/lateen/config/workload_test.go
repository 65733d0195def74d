package config_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

func TestLoadOfTheMoversIdentity(t *testing.T) {
	for name, test := range map[string]struct {
		arguments      []string
		missing        string // the name of a Deployment that does not exist
		image, account string
		hostPods       string
		problem, fails string
	}{
		"that of the server": {image: "velero:server", account: "velero-server"},
		"that of the flags": {
			arguments: []string{"--mover-image=mine:1", "--mover-service-account=mine"}, missing: "velero", image: "mine:1", account: "mine",
		},
		"the image of the flag alone": {
			arguments: []string{"--mover-image=mine:1"}, image: "mine:1", account: "velero-server",
		},
		"that of the server as template, with the directory of the DaemonSet": {
			arguments: []string{"--mover-template=deployment/velero"}, image: "velero:server", account: "velero-server",
		},
		"the server is the template and missing": {
			arguments: []string{"--mover-template=deployment/velero"}, missing: "velero", fails: "deployments velero/velero: it does not exist",
		},
		"without server it is not the agent's own": {
			missing: "velero", fails: "--mover-service-account",
		},
		"without server the image is the template's": {
			arguments: []string{"--mover-service-account=mine"}, missing: "velero", image: "lateen:agent", account: "mine", problem: "--mover-image",
		},
		"without server another Deployment has both": {
			arguments: []string{"--mover-template=deployment/other"}, missing: "velero", image: "other:1", account: "other", problem: "ServiceAccount other",
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := installation(fullConfig)
			other := &appsv1.Deployment{ObjectMeta: meta("other"), Spec: appsv1.DeploymentSpec{Template: workload("other:1", "other")}}
			require.NoError(t, client.Tracker().Add(other))
			if test.missing != "" {
				require.NoError(t, client.AppsV1().Deployments("velero").Delete(t.Context(), test.missing, metav1.DeleteOptions{}))
			}
			got, err := config.Load(t.Context(), client, options(t, test.arguments...), newHasty())
			if test.fails != "" {
				require.ErrorContains(t, err, test.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.image, got.Templates[corev1.Linux].Image)
			require.Equal(t, test.account, got.Templates[corev1.Linux].ServiceAccount)
			require.Equal(t, "/data/kubelet/pods", got.HostPods)
			if test.problem == "" {
				require.Empty(t, got.Problems)
				return
			}
			require.Len(t, got.Problems, 1)
			require.Equal(t, configmap.SectionMoverTemplate, got.Problems[0].Section)
			require.Contains(t, got.Problems[0].Message, test.problem)
		})
	}
}

func TestLoadOfAnInvalidTemplate(t *testing.T) {
	client := installation("", changed("node-agent", func(agents *appsv1.DaemonSet) { agents.Spec.Template.Spec.Containers = nil }))
	_, err := config.Load(t.Context(), client, options(t), newHasty())
	require.ErrorContains(t, err, "inherit from daemonsets velero/node-agent: pod template has 0 containers")
}

// windowsAgents returns the DaemonSet of Velero's agents on Windows.
func windowsAgents() *appsv1.DaemonSet {
	template := workload("velero:windows", "velero")
	template.Spec.NodeSelector, template.Spec.Tolerations = nil, []corev1.Toleration{{Key: "os", Value: "windows"}}
	template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "WINDOWS"}}
	template.Spec.Volumes[1].HostPath.Path = `C:\kubelet\pods`
	return &appsv1.DaemonSet{ObjectMeta: meta("node-agent-windows"), Spec: appsv1.DaemonSetSpec{Template: template}}
}

func TestLoadOnAWindowsNode(t *testing.T) {
	client := installation("", changed("node-1", func(node *corev1.Node) { node.Labels = map[string]string{"kubernetes.io/os": "windows"} }))
	_, err := config.Load(t.Context(), client, options(t), newHasty())
	require.ErrorContains(t, err, "daemonsets velero/node-agent-windows")

	require.NoError(t, client.Tracker().Add(windowsAgents()))
	got, err := config.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.Equal(t, corev1.Windows, got.Node.OS)
	require.Equal(t, `C:\kubelet\pods`, got.HostPods)
	require.Len(t, got.Templates, 2)
}

func TestLoadOfTemplatesByOperatingSystem(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		env       string // the first variable of movers on Windows
	}{
		"those of the agents":                                {env: "WINDOWS"},
		"that of the server, where agents run as they did":   {arguments: []string{"--mover-template=deployment/velero"}, env: "NODE_NAME"},
		"that of another workload, where agents run as well": {arguments: []string{"--mover-template=deployment/other"}, env: "NODE_NAME"},
	} {
		t.Run(name, func(t *testing.T) {
			client := installation("")
			other := &appsv1.Deployment{ObjectMeta: meta("other"), Spec: appsv1.DeploymentSpec{Template: workload("other:1", "other")}}
			require.NoError(t, client.Tracker().Add(other))
			require.NoError(t, client.Tracker().Add(windowsAgents()))
			requests := fault(client, "*", -1, nil)
			got, err := config.Load(t.Context(), client, options(t, append(test.arguments, "--node-agent-configmap=")...), newHasty())
			require.NoError(t, err)
			require.Empty(t, got.Problems)

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
			require.Equal(t, "/data/kubelet/pods", got.HostPods, "that of the node's own operating system")
			workloads := 3
			if slices.Contains(test.arguments, "--mover-template=deployment/other") {
				workloads = 4
			}
			require.Equal(t, 3+workloads, *requests, "the node, two API versions, and each workload once")
		})
	}
}

func TestLoadOnLinuxIgnoresAnInvalidWindowsTemplate(t *testing.T) {
	client, agents := installation(fullConfig), windowsAgents()
	agents.Spec.Template.Spec.Containers = append(agents.Spec.Template.Spec.Containers, corev1.Container{Name: "proxy"})
	require.NoError(t, client.Tracker().Add(agents))
	got, err := config.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.NotContains(t, got.Templates, corev1.Windows)
	require.Len(t, got.Problems, 1)
	require.Equal(t, configmap.SectionMoverTemplate, got.Problems[0].Section)
	require.Contains(t, got.Problems[0].Message, "no movers on Windows")
}

func TestLoadWithoutDaemonSetConfinesNoMover(t *testing.T) {
	client := installation(fullConfig)
	require.NoError(t, client.AppsV1().DaemonSets("velero").Delete(t.Context(), "node-agent", metav1.DeleteOptions{}))
	got, err := config.Load(t.Context(), client, options(t, "--mover-template=deployment/velero"), newHasty())
	require.NoError(t, err)
	require.Empty(t, got.HostPods)
	require.Empty(t, got.Templates[corev1.Linux].AgentTolerations)
}

func TestLoadOnANodeWithoutOSIsLinux(t *testing.T) {
	client := installation("", changed("node-1", func(node *corev1.Node) { node.Labels = nil }))
	got, err := config.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.Equal(t, corev1.Linux, got.Node.OS)
}

func TestLoadImageComesFromTheContainerOfTheServer(t *testing.T) {
	client := installation("", changed("velero", func(velero *appsv1.Deployment) {
		pod := &velero.Spec.Template.Spec
		pod.Containers = append([]corev1.Container{{Name: "proxy", Image: "proxy:1"}}, pod.Containers...)
	}))
	got, err := config.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.Equal(t, "velero:server", got.Templates[corev1.Linux].Image)
}

func TestLoadCountsTheAgents(t *testing.T) {
	client := installation("", changed(config.DaemonSetName, func(agents *appsv1.DaemonSet) { agents.Status.DesiredNumberScheduled = 500 }))
	windows := windowsAgents()
	windows.Status.DesiredNumberScheduled = 7
	require.NoError(t, client.Tracker().Add(windows))
	got, err := config.Load(t.Context(), client, options(t, "--mover-template=deployment/velero"), newHasty())
	require.NoError(t, err)
	require.Equal(t, 507, got.Agents)
}
