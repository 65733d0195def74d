package install

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster/process"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// chartsAgents is the DaemonSet of Velero's chart, as any release would have it. Its agents listen on another port than it says.
func (e *env) chartsAgents() []unstructured.Unstructured {
	text, err := os.ReadFile("testdata/helm-node-agent.yaml")
	require.NoError(e, err)
	var agents unstructured.Unstructured
	require.NoError(e, yaml.UnmarshalStrict(text, &agents.Object))
	agents.SetNamespace(e.namespace)
	agents.SetAnnotations(map[string]string{"team": "storage"}) // Helm writes the others
	edit(e.T, &agents, func(container *corev1.Container) {
		container.Args = append(container.Args[:len(container.Args)-1], "--metrics-address=:8086") // without a ConfigMap
	})
	return []unstructured.Unstructured{agents}
}

// velerosAgents are the DaemonSets of `velero install`.
func (e *env) velerosAgents() []unstructured.Unstructured {
	return slices.DeleteFunc(e.velerosObjects("--use-node-agent", "--use-node-agent-windows"), func(object unstructured.Unstructured) bool {
		return object.GetKind() != "DaemonSet"
	})
}

// edit changes the container of a DaemonSet's manifest.
func edit(t *testing.T, manifest *unstructured.Unstructured, change func(*corev1.Container)) {
	t.Helper()
	var agents appsv1.DaemonSet
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(manifest.Object, &agents))
	change(&agents.Spec.Template.Spec.Containers[0])
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&agents.Spec.Template)
	require.NoError(t, err)
	require.NoError(t, unstructured.SetNestedMap(manifest.Object, fields, "spec", "template"))
}

// tool writes a new version of manifests.
type tool struct {
	command   []string // in the folder of a chart
	conflicts bool     // it refuses to write the fields of another manager
}

var tools = map[string]tool{
	"Helm 3":                      {command: []string{"helm", "upgrade", "--install", "backups", ".", "--server-side=false"}}, // Helm 4 has its merge, too
	"Helm 4":                      {command: []string{"helm", "upgrade", "--install", "backups", "."}, conflicts: true},
	"kubectl apply":               {command: []string{"kubectl", "apply", "--filename=templates"}},
	"kubectl apply --server-side": {command: []string{"kubectl", "apply", "--filename=templates", "--server-side"}, conflicts: true},
}

// write runs the tool in a folder with manifests, which is a chart.
func (t tool) write(s *env, manifests []unstructured.Unstructured, flags ...string) (string, error) {
	dir := s.TempDir()
	require.NoError(s, os.WriteFile(filepath.Join(dir, "Chart.yaml"), []byte("{apiVersion: v2, name: backups, version: 1.0.0}"), 0o600))
	require.NoError(s, os.Mkdir(filepath.Join(dir, "templates"), 0o700))
	for _, manifest := range manifests {
		text, err := json.Marshal(manifest.Object)
		require.NoError(s, err)
		require.NoError(s, os.WriteFile(filepath.Join(dir, "templates", manifest.GetName()+".yaml"), text, 0o600))
	}
	args := slices.Concat(t.command[1:], flags, []string{"--namespace=" + s.namespace, "--kubeconfig=" + s.kubeconfig})
	ctx, cancel := context.WithTimeout(s.Context(), testenv.Patience)
	defer cancel()
	command := fixture.Command(ctx, s.T, t.command[0], args...)
	command.Dir = dir
	out, err := command.CombinedOutput()
	return string(out), err
}

// Whatever brings Velero's agents back after an adoption keeps the probes of the adopted ones. Both agents answer these; and what
// an adoption has added never becomes a part of what its undo restores.
func TestAgentsOfBothProgramsComeUpAfterAMerge(t *testing.T) {
	for origin, agents := range map[string]func(*env) []unstructured.Unstructured{"velero install": (*env).velerosAgents, "Velero's chart": (*env).chartsAgents} {
		t.Run(origin, func(t *testing.T) {
			s := envOf(t, plane)
			s.installVelero()
			s.nodeWithoutAgents()
			require.NoError(t, testenv.Apply(fixture.Soon(t), plane.Admin(), &agents(s)[0]))
			velero := s.startApart("velero", s.agents(), "/metrics")
			s.succeeds("", "adopt", "--force", "--lateen-image=example.test/lateen:v1")
			lateen := s.startApart("lateen", s.agents(), "/readyz")
			for name, tool := range tools {
				if (tool.command[0] == "helm") == (origin == "Velero's chart") { // as people update them
					t.Run(name, func(t *testing.T) { newEnv(t).merged(agents, tool, velero, lateen) })
				}
			}
		})
	}
}

func (e *env) merged(agents func(*env) []unstructured.Unstructured, tool tool, velero, lateen *process.Process) {
	e.installVelero()
	manifests := agents(e)
	update := func(tag string, adopted bool) []*appsv1.DaemonSet {
		for index := range manifests {
			edit(e.T, &manifests[index], func(container *corev1.Container) {
				container.Image, container.Args[2] = "velero/velero:"+tag, "--features="+tag
			})
		}
		var flags []string
		if adopted && tool.conflicts {
			out, err := tool.write(e, manifests)
			require.Error(e, err)
			require.Contains(e, out, `with "lateen"`)
			flags = []string{"--force-conflicts"}
		}
		out, err := tool.write(e, manifests, flags...)
		require.NoError(e, err, out)
		return e.daemonSets(manifests)
	}
	adopt := func(args ...string) []*appsv1.DaemonSet {
		e.succeeds("", append([]string{"adopt", "--force"}, args...)...)
		return e.daemonSets(manifests)
	}
	const v1 = "--lateen-image=example.test/lateen:v1"
	second, first := update("v2", false), update("v1", false)
	for index, adopted := range adopt(v1) {
		requireAdopted(e.T, first[index], adopted)
		requireAnswers(e.T, lateen, adopted)
	}
	for index, restored := range update("v2", true) {
		require.Equal(e, second[index].Spec.Template.Spec.Containers[0].Args, restored.Spec.Template.Spec.Containers[0].Args)
		requireAnswers(e.T, velero, restored)
	}
	for _, adopted := range adopt(v1) {
		requireAnswers(e.T, lateen, adopted)
	}
	e.requireSame(second, adopt("--undo"))
	e.requireSame(first, update("v1", false)) // without a conflict
	adopt(v1)
	update("v2", true)
	e.requireSame(second, adopt("--undo")) // of agents that are Velero's already
	e.requireGone(deploy.RBAC(e.namespace)...)
}

// requireSame compares all that tools write, except what kubectl and Helm note down.
func (e *env) requireSame(want, have []*appsv1.DaemonSet) {
	for index := range want {
		require.Equal(e, want[index].Spec, have[index].Spec)
		require.Equal(e, want[index].Labels, have[index].Labels)
		require.ElementsMatch(e, slices.Collect(maps.Keys(want[index].Annotations)), slices.Collect(maps.Keys(have[index].Annotations)))
	}
}

func (e *env) daemonSets(manifests []unstructured.Unstructured) (all []*appsv1.DaemonSet) {
	for _, manifest := range manifests {
		all = append(all, e.daemonSet(manifest.GetName()))
	}
	return all
}

// nodeWithoutAgents has the name of the namespace. No DaemonSet has a pod on it, which would never be ready.
func (e *env) nodeWithoutAgents() {
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "own", Effect: corev1.TaintEffectNoSchedule}}}}
	_, err := e.kube.CoreV1().Nodes().Create(fixture.Soon(e.T), own, metav1.CreateOptions{})
	require.NoError(e, err)
	e.Cleanup(func() {
		require.NoError(e, e.kube.CoreV1().Nodes().Delete(context.WithoutCancel(e.Context()), own.Name, metav1.DeleteOptions{}))
	})
}

// startApart runs an agent with the arguments of its DaemonSet, in a network namespace of its own, until the end of the test. It
// returns once the agent answers a request of the path.
func (e *env) startApart(name string, agents *appsv1.DaemonSet, path string) *process.Process {
	container := agents.Spec.Template.Spec.Containers[0]
	command := fixture.Command(e.Context(), e.T, name, append(slices.Clone(container.Args), "--namespace="+e.namespace, "--kubeconfig="+e.kubeconfig)...)
	log := &strings.Builder{}
	command.Env, command.Stderr = append(command.Env, "NODE_NAME="+e.namespace), log
	server, err := url.Parse(plane.Admin().Host)
	require.NoError(e, err)
	agent, err := process.StartApart(command, server.Host)
	require.NoError(e, err)
	e.Cleanup(func() { _ = agent.Kill() })
	port := "8085"
	if slices.Contains(container.Args, "--metrics-address=:8086") {
		port = "8086"
	}
	for ctx := fixture.Soon(e.T); ; {
		if status, err := get(ctx, agent, "http://127.0.0.1:"+port+path); err == nil && status == http.StatusOK {
			return agent
		}
		select {
		case <-agent.Ended():
			require.Fail(e, "the agent ended by itself", "%s: %v: %s", name, agent.Err(), log)
		case <-ctx.Done():
			require.Fail(e, "the agent does not answer", name)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// requireAnswers sends the requests of all probes, as the kubelet does.
func requireAnswers(t *testing.T, agent *process.Process, agents *appsv1.DaemonSet) {
	t.Helper()
	container := agents.Spec.Template.Spec.Containers[0]
	for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
		require.NotNil(t, probe)
		address, err := url.Parse(probe.HTTPGet.Path)
		require.NoError(t, err)
		port := probe.HTTPGet.Port.IntValue()
		if named := slices.IndexFunc(container.Ports, func(each corev1.ContainerPort) bool { return each.Name == probe.HTTPGet.Port.StrVal }); named >= 0 {
			port = int(container.Ports[named].ContainerPort)
		}
		address.Scheme, address.Host = "http", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		status, err := get(fixture.Soon(t), agent, address.String())
		require.NoError(t, err, address)
		require.Equal(t, http.StatusOK, status, address)
	}
}

// get sends a request to an agent in its network namespace.
func get(ctx context.Context, agent *process.Process, address string) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: agent.Dial, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}
