package install

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// helm runs helm in the namespace of the environment.
func (e *env) helm(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(e.Context(), testenv.Patience)
	defer cancel()
	out, err := fixture.Command(ctx, e.T, "helm", append(args, "--namespace="+e.namespace, "--kubeconfig="+e.kubeconfig)...).CombinedOutput()
	return string(out), err
}

// upgrade installs or upgrades the chart with an image of this tag.
func (e *env) upgrade(tag string, args ...string) {
	out, err := e.helm(append([]string{
		"upgrade", "--install", "lateen", chart, "--set=image.repository=example.test/lateen,image.tag=" + tag,
	}, args...)...)
	require.NoError(e, err, out)
}

func TestTheChartIsInstalledUpgradedRolledBackAndRemoved(t *testing.T) {
	s := newEnv(t)
	s.install("--use-node-agent=false")
	image := func() string { return s.agents().Spec.Template.Spec.Containers[0].Image }
	objects := deploy.Objects(deploy.Options{Namespace: s.namespace})
	versions := func() map[string]string { return s.versions(manifests(t, objects...)) }
	s.upgrade("v1")
	first, agents := versions(), asJSON(t, s.agents())
	s.upgrade("v1")
	require.Equal(t, first, versions(), "the second installation changed something")

	s.upgrade("v2", "--set=nodeAgent.extraArgs={--workers=4},moverServiceAccount.create=true")
	require.Equal(t, "example.test/lateen:v2", image())
	require.Contains(t, s.agents().Spec.Template.Spec.Containers[0].Args, "--workers=4")
	out, err := s.helm("rollback", "lateen", "1")
	require.NoError(t, err, out)
	require.Equal(t, agents, asJSON(t, s.agents()), "the rollback left something of the upgrade")

	out, err = s.helm("uninstall", "lateen", "--wait")
	require.NoError(t, err, out)
	s.requireGone(objects...)
	s.requireThere(deploy.MoverAccess(s.namespace, deploy.Movers{Account: true})...) // movers may run with them
}

// chart is the folder of the Helm chart.
const chart = "../../deploy/chart"

// rendered returns the objects of the chart with values, by kind and name.
func rendered(t *testing.T, namespace, values string) map[string]runtime.Object {
	t.Helper()
	all := map[string]runtime.Object{}
	for name, object := range documents(t, namespace, values) {
		all[name] = typed(t, &unstructured.Unstructured{Object: object})
	}
	return all
}

func template(t *testing.T, namespace, values string) (out, complaints string, err error) {
	t.Helper()
	command := fixture.Command(t.Context(), t, "helm", "template", "lateen", chart, "--namespace="+namespace, "--values=-")
	command.Stdin = strings.NewReader(values)
	var printed, reported bytes.Buffer
	command.Stdout, command.Stderr = &printed, &reported
	err = command.Run()
	return printed.String(), reported.String(), err
}

// typed decodes an object strictly, so that two spellings of it are equal, and a field that Kubernetes does not have is an
// error. It drops the labels that tools give to what they install.
func typed(t *testing.T, object *unstructured.Unstructured) runtime.Object {
	t.Helper()
	labels := object.GetLabels()
	for _, label := range []string{"app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "helm.sh/chart"} {
		delete(labels, label)
	}
	object.SetLabels(labels)
	unstructured.RemoveNestedField(object.Object, "metadata", "annotations", "helm.sh/resource-policy")
	if len(object.GetAnnotations()) == 0 {
		object.SetAnnotations(nil)
	}
	if !scheme.Scheme.Recognizes(object.GroupVersionKind()) {
		return object
	}
	into, err := scheme.Scheme.New(object.GroupVersionKind())
	require.NoError(t, err)
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, into, true))
	return into
}

// alike are values of the chart, and the options of the package that make the same.
var alike = map[string]struct {
	values  string
	options deploy.Options
}{
	"by default": {
		values:  "image: {repository: example.test/lateen, tag: v1}",
		options: deploy.Options{Namespace: "velero", Image: "example.test/lateen:v1"},
	},
	"with the host path, ConfigMaps, another kubelet root, a policy on pods and what a user adds": {
		values: `
image: {repository: example.test/lateen, digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
configuration:
  features: EnableCSI
  nodeAgentConfigMap: node-agent-config
  backupRepositoryConfigMap: repository-config
  repoMaintenanceJobConfigMap: maintenance-config
  repoMaintenanceFrequency: 1h0m0s
podAnnotations: {prometheus.io/scrape: "false", team: storage}
nodeAgent:
  disableHostPath: false
  podVolumePath: /data/kubelet/pods
  priorityClassName: backup-agent
  podLabels: {team: storage, role: may-not-be-changed}
  resources: {limits: {memory: 1Gi}, requests: null}
podPolicy: privileged
podPolicyAllows: {image: velero/velero, serviceAccount: server, secrets: [bucket, proxy], csiDrivers: [inline.test], copySecrets: [kms-key], copyConfigMaps: [kms]}
`,
		options: deploy.Options{
			Namespace: "backups", Image: "example.test/lateen@sha256:" + strings.Repeat("0", 64),
			NodeAgentConfigMap: "node-agent-config", BackupRepositoryConfigMap: "repository-config",
			MaintenanceConfigMap: "maintenance-config", MaintenanceFrequency: time.Hour,
			KubeletRoot: "/data/kubelet", HostPath: true, PriorityClass: "backup-agent", Features: "EnableCSI",
			Labels:      map[string]string{"team": "storage", "role": "may-not-be-changed"},
			Annotations: map[string]string{"prometheus.io/scrape": "false", "team": "storage"},
			Resources:   &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}},
			PodPolicy:   deploy.PodPolicyPrivileged, Copies: deploy.Copies{Secrets: []string{"kms-key"}, ConfigMaps: []string{"kms"}},
			Inherited: deploy.Inherited{Image: "velero/velero", Account: "server", Secrets: []string{"bucket", "proxy"}, CSIDrivers: []string{"inline.test"}},
		},
	},
	"with a policy on pods, and a ServiceAccount of movers": {
		values: `
image: {repository: example.test/lateen, tag: v1}
podPolicy: restricted
podPolicyAllows: {image: velero/velero}
moverServiceAccount: {create: true, annotations: {eks.amazonaws.com/role-arn: of-the-bucket}, secrets: [second-location]}
`,
		options: deploy.Options{
			Namespace: "velero", Image: "example.test/lateen:v1", PodPolicy: deploy.PodPolicyRestricted, Inherited: deploy.Inherited{Image: "velero/velero"},
			Movers: deploy.Movers{Account: true, Annotations: map[string]string{"eks.amazonaws.com/role-arn": "of-the-bucket"}, Secrets: []string{"second-location"}},
		},
	},
	"with agents on Windows nodes, another kubelet root, in a namespace that YAML would take for a number": {
		values:  "{image: {repository: example.test/lateen, tag: v1}, nodeAgentWindows: {enabled: true}, nodeAgent: {podVolumePath: /data/kubelet/pods}}",
		options: deploy.Options{Namespace: "0777", Image: "example.test/lateen:v1", Windows: true, KubeletRoot: "/data/kubelet"},
	},
}

func TestTheChartMakesTheObjectsOfThePackage(t *testing.T) {
	for name, test := range alike {
		t.Run(name, func(t *testing.T) {
			want := map[string]runtime.Object{}
			for _, manifest := range manifests(t, deploy.Objects(test.options)...) {
				want[manifest.GetKind()+" "+manifest.GetName()] = typed(t, &manifest)
			}
			require.Equal(t, want, rendered(t, test.options.Namespace, test.values))
		})
	}
}

func TestTheChartHasTheFilesForMonitoring(t *testing.T) {
	all := rendered(t, "velero", `
image: {repository: example.test/lateen}
metrics: {nodeAgentPodMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}
`)
	for name, file := range map[string]string{"PodMonitor lateen": "podmonitor.yaml", "PrometheusRule lateen": "prometheusrule.yaml"} {
		text, err := os.ReadFile("../../deploy/monitoring/" + file)
		require.NoError(t, err)
		var want unstructured.Unstructured
		require.NoError(t, yaml.Unmarshal(text, &want.Object))
		require.Equal(t, &want, all[name])
	}
	dashboard, err := os.ReadFile("../../deploy/monitoring/lateen.json")
	require.NoError(t, err)
	require.IsType(t, &corev1.ConfigMap{}, all["ConfigMap lateen-dashboard"])
	require.JSONEq(t, string(dashboard), all["ConfigMap lateen-dashboard"].(*corev1.ConfigMap).Data["lateen.json"])
	agents, complaints, err := template(t, "velero", "{image: {repository: example.test/lateen}, metrics: {nodeAgentPodMonitor: {enabled: true}}}")
	require.NoError(t, err, complaints)
	require.NotContains(t, agents, "prometheus.io/scrape", "Prometheus would scrape the agents twice")
}

func TestTheChartRefusesValuesByName(t *testing.T) {
	tests := map[string]struct{ values, says string }{
		"without an image":             {values: "{}", says: "image.repository: set the image of Lateen"},
		"what Lateen has another name": {values: "nodeAgent: {securityContext: {runAsUser: 0}}", says: "set nodeAgent.containerSecurityContext"},
		"what agents do not need":      {values: "nodeAgent: {pluginVolumePath: /var/lib/kubelet/plugins}", says: "nodeAgent.pluginVolumePath is a value of Velero's chart"},
		"a directory that agents lack": {values: "nodeAgent: {useScratchEmptyDir: true}", says: "agents write no files; remove it"},
		"a typing error":               {values: "nodeAgent: {tolerationz: []}", says: "'tolerationz' not allowed"},
		"a value of another type":      {values: "nodeAgent: {tolerations: {}}", says: "/nodeAgent/tolerations"},
		"another port of metrics":      {values: "nodeAgent: {extraArgs: ['--metrics-address=:9090']}", says: "--metrics-address=:9090: probes, NetworkPolicy and monitors use port 8085"},
		"root without the right to":    {values: "nodeAgent: {podSecurityContext: {runAsUser: 0}}", says: "runAsUser is 0 and runAsNonRoot is true"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			values := test.values
			if values != "{}" {
				values += "\nimage: {repository: example.test/lateen}"
			}
			_, complaints, err := template(t, "velero", values)
			require.Error(t, err)
			require.Contains(t, complaints, test.says)
		})
	}
}

// everyValue sets every value of the chart that alike does not set, and some more, to something else than its default.
const everyValue = `
image: {repository: example.test/lateen, pullPolicy: Never, imagePullSecrets: [registry]}
veleroDeployment: backups
configuration:
  logLevel: debug
  logFormat: json
  dataMoverPrepareTimeout: 40m
  repoMaintenanceWindow: "22:00-02:00"
  finishedTTL: 168h
nodeAgent:
  disableHostPath: false
  runtimeClassName: gvisor
  resources: {requests: {cpu: 1, memory: 1Gi}, limits: {memory: 2Gi}}
  resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]
  tolerations: [{key: storage, operator: Exists}]
  annotations: {team: storage}
  labels: {team: storage}
  extraVolumes: [{name: ca, configMap: {name: ca}}]
  extraVolumeMounts: [{name: ca, mountPath: /ca}]
  extraEnvVars: [{name: HTTPS_PROXY, value: "http://proxy.test"}]
  extraArgs: [--workers=4]
  dnsPolicy: Default
  dnsConfig: {nameservers: [10.0.0.10]}
  hostAliases: [{ip: 127.0.0.1, hostnames: [a.test]}]
  podSecurityContext: {fsGroup: 1337}
  containerSecurityContext: {privileged: false}
  lifecycle: {preStop: {sleep: {seconds: 1}}}
  nodeSelector: {disk: ssd}
  affinity: {nodeAffinity: {}}
  updateStrategy: {rollingUpdate: {maxUnavailable: 20%}}
podAnnotations: {team: storage}
terminationGracePeriodSeconds: 0
serviceAccount: {annotations: {role: agents}}
networkPolicy: {enabled: false}
flowControl: {enabled: false}
metrics:
  podAnnotations: {scrape: "yes"}
  nodeAgentPodMonitor: {enabled: true, additionalLabels: {monitor: a}, annotations: {monitor: b}}
  prometheusRule: {enabled: true, additionalLabels: {rule: a}}
  dashboard: {enabled: true}
`

// Every value that alike does not set has its exact content at its place. A want that begins with + is one element of the list
// there; - is no such object.
func TestEveryValueOfTheChartIsWhereItBelongs(t *testing.T) {
	const (
		agents    = "DaemonSet node-agent"
		pod       = "spec/template/spec/"
		container = pod + "containers/0/"
	)
	const monitor = "nodeAgentPodMonitor: {enabled: "
	all, others := documents(t, "velero", everyValue), documents(t, "velero", strings.Replace(everyValue, monitor+"true", monitor+"false", 1))
	rows := map[string]struct{ object, at, want string }{
		"image.pullPolicy":                             {agents, container + "imagePullPolicy", `"Never"`},
		"image.imagePullSecrets":                       {agents, pod + "imagePullSecrets", `[{"name":"registry"}]`},
		"veleroDeployment":                             {agents, container + "args", `+"--mover-template=deployment/backups"`},
		"configuration.logLevel":                       {agents, container + "args", `+"--log-level=debug"`},
		"configuration.logFormat":                      {agents, container + "args", `+"--log-format=json"`},
		"configuration.dataMoverPrepareTimeout":        {agents, container + "args", `+"--data-mover-prepare-timeout=40m"`},
		"configuration.repoMaintenanceWindow":          {agents, container + "args", `+"--repo-maintenance-window=22:00-02:00"`},
		"configuration.finishedTTL":                    {agents, container + "args", `+"--finished-ttl=168h"`},
		"nodeAgent.runtimeClassName":                   {agents, pod + "runtimeClassName", `"gvisor"`},
		"nodeAgent.resources":                          {agents, container + "resources", `{"requests":{"cpu":1,"memory":"1Gi"},"limits":{"memory":"2Gi"}}`},
		"nodeAgent.resizePolicy":                       {agents, container + "resizePolicy", `[{"resourceName":"cpu","restartPolicy":"NotRequired"}]`},
		"nodeAgent.tolerations":                        {agents, pod + "tolerations", `[{"key":"storage","operator":"Exists"}]`},
		"nodeAgent.annotations":                        {agents, "metadata/annotations", `{"team":"storage"}`},
		"nodeAgent.labels":                             {agents, "metadata/labels/team", `"storage"`},
		"nodeAgent.extraVolumes":                       {agents, pod + "volumes", `+{"name":"ca","configMap":{"name":"ca"}}`},
		"nodeAgent.extraVolumeMounts":                  {agents, container + "volumeMounts", `+{"name":"ca","mountPath":"/ca"}`},
		"nodeAgent.extraEnvVars":                       {agents, container + "env", `+{"name":"HTTPS_PROXY","value":"http://proxy.test"}`},
		"nodeAgent.extraArgs":                          {agents, container + "args", `+"--workers=4"`},
		"nodeAgent.dnsPolicy":                          {agents, pod + "dnsPolicy", `"Default"`},
		"nodeAgent.dnsConfig":                          {agents, pod + "dnsConfig", `{"nameservers":["10.0.0.10"]}`},
		"nodeAgent.hostAliases":                        {agents, pod + "hostAliases", `[{"ip":"127.0.0.1","hostnames":["a.test"]}]`},
		"nodeAgent.podSecurityContext":                 {agents, pod + "securityContext", `{"fsGroup":1337,"runAsNonRoot":false,"runAsUser":0,"runAsGroup":0,"seccompProfile":{"type":"RuntimeDefault"}}`},
		"nodeAgent.containerSecurityContext":           {agents, container + "securityContext", `{"privileged":false,"allowPrivilegeEscalation":false,"readOnlyRootFilesystem":true,"capabilities":{"drop":["ALL"]}}`},
		"nodeAgent.lifecycle":                          {agents, container + "lifecycle", `{"preStop":{"sleep":{"seconds":1}}}`},
		"nodeAgent.nodeSelector":                       {agents, pod + "nodeSelector", `{"disk":"ssd","kubernetes.io/os":"linux"}`},
		"nodeAgent.affinity":                           {agents, pod + "affinity", `{"nodeAffinity":{}}`},
		"nodeAgent.updateStrategy":                     {agents, "spec/updateStrategy", `{"rollingUpdate":{"maxUnavailable":"20%"}}`},
		"terminationGracePeriodSeconds":                {agents, pod + "terminationGracePeriodSeconds", `0`},
		"serviceAccount.annotations":                   {"ServiceAccount lateen", "metadata/annotations", `{"role":"agents"}`},
		"networkPolicy.enabled":                        {"NetworkPolicy lateen", "", "-"},
		"flowControl.enabled":                          {"FlowSchema lateen", "", "-"},
		"metrics.podAnnotations":                       {agents, "spec/template/metadata/annotations", `{"team":"storage","scrape":"yes","prometheus.io/scrape":"true","prometheus.io/port":"8085","prometheus.io/path":"/metrics"}`},
		"metrics.nodeAgentPodMonitor.enabled":          {"PodMonitor lateen", "kind", `"PodMonitor"`},
		"metrics.nodeAgentPodMonitor.additionalLabels": {"PodMonitor lateen", "metadata/labels/monitor", `"a"`},
		"metrics.nodeAgentPodMonitor.annotations":      {"PodMonitor lateen", "metadata/annotations", `{"monitor":"b"}`},
		"metrics.prometheusRule.enabled":               {"PrometheusRule lateen", "kind", `"PrometheusRule"`},
		"metrics.prometheusRule.additionalLabels":      {"PrometheusRule lateen", "metadata/labels/rule", `"a"`},
		"metrics.dashboard.enabled":                    {"ConfigMap lateen-dashboard", "kind", `"ConfigMap"`},
	}
	text, err := os.ReadFile("../../deploy/chart/values.yaml")
	require.NoError(t, err)
	var defaults map[string]any
	require.NoError(t, yaml.Unmarshal(text, &defaults))
	var set []string // by alike
	for _, test := range alike {
		var values map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(test.values), &values))
		set = append(set, leaves("", values, func(string) bool { return false })...)
	}
	for _, value := range leaves("", defaults, func(path string) bool { return rows[path].object != "" }) {
		row := rows[value]
		if row.object == "" {
			require.Regexp(t, "(?m)^"+value+`(\.|$)`, strings.Join(set, "\n"), "no row for %s", value)
			continue
		}
		from := all
		if value == "metrics.podAnnotations" {
			from = others
		}
		if row.want == "-" {
			require.NotContains(t, from, row.object, value)
			continue
		}
		var found any = from[row.object]
		require.NotNil(t, found, "%s: no %s", value, row.object)
		for key := range strings.SplitSeq(row.at, "/") {
			if list, is := found.([]any); is {
				index, err := strconv.Atoi(key)
				require.NoError(t, err)
				found = list[index]
				continue
			}
			found = found.(map[string]any)[key]
		}
		var want any
		part, element := strings.CutPrefix(row.want, "+")
		require.NoError(t, json.Unmarshal([]byte(part), &want))
		if element {
			require.Contains(t, found, want, value)
		} else {
			require.Equal(t, want, found, value)
		}
	}
}

// leaves returns the paths of the values, down to those for which whole is true.
func leaves(at string, values map[string]any, whole func(path string) bool) (all []string) {
	for name, value := range values {
		path := strings.TrimPrefix(at+"."+name, ".")
		if below, is := value.(map[string]any); is && !whole(path) && len(below) > 0 {
			all = append(all, leaves(path, below, whole)...)
		} else {
			all = append(all, path)
		}
	}
	return all
}

// documents returns what the chart makes of values, by kind and name.
func documents(t *testing.T, namespace, values string) map[string]map[string]any {
	t.Helper()
	out, complaints, err := template(t, namespace, values)
	require.NoError(t, err, complaints)
	all := map[string]map[string]any{}
	for document := range strings.SplitSeq(out, "\n---\n") {
		var object unstructured.Unstructured
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), &object.Object))
		if object.Object != nil {
			all[object.GetKind()+" "+object.GetName()] = object.Object
		}
	}
	return all
}

// A label of a user never replaces a standard one, which other tools and lateen adopt read. YAML forbids a key twice.
func TestTheChartKeepsItsStandardLabels(t *testing.T) {
	all := rendered(t, "velero", `
image: {repository: example.test/lateen}
nodeAgent: {labels: &labels {component: mine, app.kubernetes.io/part-of: mine, team: storage}}
metrics:
  nodeAgentPodMonitor: {enabled: true, additionalLabels: *labels}
  prometheusRule: {enabled: true, additionalLabels: *labels}
`)
	for _, name := range []string{"DaemonSet node-agent", "PodMonitor lateen", "PrometheusRule lateen"} {
		object, ok := all[name].(metav1.Object)
		require.True(t, ok, name)
		require.Equal(t, map[string]string{"component": "velero", "app.kubernetes.io/part-of": "lateen", "team": "storage"}, object.GetLabels(), name)
	}
}

func TestHelmFindsNoFaultInTheChart(t *testing.T) {
	out, err := fixture.Command(t.Context(), t, "helm", "lint", "--strict", chart, "--set=image.repository=example.test/lateen").CombinedOutput()
	require.NoError(t, err, string(out))
}
