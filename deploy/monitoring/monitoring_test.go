// Package monitoring tests that the files for Prometheus, its operator and Grafana use only metrics and pods of Lateen.
package monitoring

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/metrics"
)

// object holds the common fields of all Kubernetes objects.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
}

type prometheusRule struct {
	object
	Spec struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []rule `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

type podMonitor struct {
	object
	Spec struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port     string `json:"port"`
			Path     string `json:"path"`
			Interval string `json:"interval"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// read decodes a file and rejects fields that T does not have.
func read[T any](t *testing.T, name string) T {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	var decoded T
	require.NoError(t, yaml.UnmarshalStrict(text, &decoded))
	return decoded
}

// group returns the rules of one group of the PrometheusRule.
func group(t *testing.T, name string) []rule {
	t.Helper()
	for _, group := range read[prometheusRule](t, "prometheusrule.yaml").Spec.Groups {
		if group.Name == name {
			return group.Rules
		}
	}
	require.Fail(t, "no such group", name)
	return nil
}

func TestThePodMonitorFindsTheAgents(t *testing.T) {
	monitor := read[podMonitor](t, "podmonitor.yaml")
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	require.NoError(t, err)
	require.False(t, selector.Empty())
	require.Equal(t, api.DefaultNamespace, monitor.Metadata.Namespace)
	agents := map[string]appsv1.DaemonSet{}
	agents["lateen install"] = read[appsv1.DaemonSet](t, "../base/daemonset.yaml")
	agents["Helm's chart, to be adopted"] = read[appsv1.DaemonSet](t, "../../test/install/testdata/helm-node-agent.yaml")
	for _, object := range deploy.Objects(deploy.Options{Windows: true}) {
		if daemonSet, ok := object.(*appsv1.DaemonSet); ok {
			agents["lateen install, "+daemonSet.Name] = *daemonSet
		}
	}
	require.Contains(t, agents, "lateen install, node-agent-windows")
	for whose, daemonSet := range agents {
		template := daemonSet.Spec.Template
		require.True(t, selector.Matches(labels.Set(template.Labels)), whose)
		var ports, scraped []string
		for _, port := range template.Spec.Containers[0].Ports {
			ports = append(ports, port.Name)
		}
		for _, endpoint := range monitor.Spec.Endpoints {
			require.Equal(t, "/metrics", endpoint.Path)
			if slices.Contains(ports, endpoint.Port) {
				scraped = append(scraped, endpoint.Port)
			}
		}
		require.Len(t, scraped, 1, "%s: each agent is scraped once", whose)
	}
	// The operator names a job after its PodMonitor. Rules and dashboard select that name.
	job := regexp.MustCompile(`job=~"([^"]+)"`)
	for _, expression := range slices.Concat(expressions(t), queries(t)) {
		for _, match := range job.FindAllStringSubmatch(expression, -1) {
			require.Regexp(t, "^"+match[1]+"$", monitor.Metadata.Namespace+"/"+monitor.Metadata.Name)
		}
	}
}

// dashboard is the tested part of Grafana's model.
type dashboard struct {
	Panels []panel `json:"panels"`
}

type panel struct {
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

func panels(t *testing.T) []panel {
	t.Helper()
	text, err := os.ReadFile("lateen.json")
	require.NoError(t, err)
	var shown dashboard
	require.NoError(t, json.Unmarshal(text, &shown))
	require.NotEmpty(t, shown.Panels)
	return shown.Panels
}

// expressions returns the PromQL expressions of the rules.
func expressions(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, group := range read[prometheusRule](t, "prometheusrule.yaml").Spec.Groups {
		for _, rule := range group.Rules {
			all = append(all, rule.Expr)
		}
	}
	return all
}

// queries returns the PromQL expressions of the dashboard.
func queries(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, panel := range panels(t) {
		for _, target := range panel.Targets {
			all = append(all, target.Expr)
		}
	}
	return all
}

// selector is a metric in an expression, with its label matchers.
type selector struct {
	metric string
	labels []string
}

// selectors finds every metric of an expression: it removes functions, operators, numbers and label lists.
func selectors(expression string) []selector {
	text := regexp.MustCompile(`"[^"]*"`).ReplaceAllString(expression, `""`)
	text = regexp.MustCompile(`\[[^\]]*\]`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)`).ReplaceAllString(text, "")
	var found []selector
	for _, word := range regexp.MustCompile(`([\d.]*[a-zA-Z_]\w*)\s*(\{[^}]*\}|\()?`).FindAllStringSubmatch(text, -1) {
		if word[2] == "(" || slices.Contains([]string{"and", "or", "unless", "offset", "by"}, word[1]) || strings.Contains("0123456789.", word[1][:1]) {
			continue
		}
		used := selector{metric: word[1]}
		for _, label := range regexp.MustCompile(`(\w+)\s*[=!]`).FindAllStringSubmatch(word[2], -1) {
			used.labels = append(used.labels, label[1])
		}
		found = append(found, used)
	}
	return found
}

// agents returns every metric of an agent by name with its labels, and the metrics that Prometheus adds per target.
func agents() map[string][]string {
	registry := prometheus.NewRegistry()
	meter := metrics.New(registry, "v1", "node-1")
	meter.Slots(func() int { return 1 }, func() int { return 0 })
	meter.Queue(0)
	meter.ConfigHash(7)
	meter.Transfers(func() []metrics.Count { return nil })
	meter.Coordination()
	meter.Maintenance()
	described := make(chan *prometheus.Desc)
	go func() {
		defer close(described)
		registry.Describe(described)
	}()
	known := map[string][]string{"up": nil}
	text := regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)
	for description := range described {
		match := text.FindStringSubmatch(description.String())
		known[match[1]] = strings.Split(match[2], ",")
	}
	return known
}

func TestEveryQueriedMetricExists(t *testing.T) {
	known := agents()
	require.Greater(t, len(known), 50)
	target := []string{"job", "namespace", "pod", "instance"} // labels that Prometheus adds
	for _, expression := range slices.Concat(expressions(t), queries(t)) {
		queried := selectors(expression)
		require.NotEmpty(t, queried, expression)
		for _, used := range queried {
			labels, exists := known[used.metric]
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				if base, cut := strings.CutSuffix(used.metric, suffix); cut && !exists {
					labels, exists = known[base]
				}
			}
			require.True(t, exists, "no agent has %s, in %s", used.metric, expression)
			for _, label := range used.labels {
				require.Contains(t, slices.Concat(labels, target), label, "label of %s, in %s", used.metric, expression)
			}
		}
	}
}

// The dashboard shows every metric of Lateen except the version, which only selects namespaces.
func TestEveryMetricOfLateenHasAPanel(t *testing.T) {
	var shown []string
	for _, query := range queries(t) {
		for _, used := range selectors(query) {
			shown = append(shown, strings.TrimSuffix(used.metric, "_bucket"))
		}
	}
	for metric := range agents() {
		if strings.HasPrefix(metric, "lateen_") && metric != "lateen_build_info" {
			require.Contains(t, shown, metric)
		}
	}
}

// A comparison of a missing series never fires, so another rule must report the absence.
func TestMissingSeriesAreAlerted(t *testing.T) {
	watched := map[string][]string{} // by alert, the metrics whose absence is reported
	for _, rule := range group(t, "lateen-unseen") {
		if rule.Alert != "LateenSeriesMissing" {
			continue
		}
		for part := range strings.SplitSeq(rule.Expr, " or ") {
			require.Regexp(t, `^absent\(.*\)$`, part)
			watched[rule.Labels["hides"]] = append(watched[rule.Labels["hides"]], selectors(part)[0].metric)
		}
	}
	hidden := map[string][]string{}
	for _, rule := range group(t, "lateen") {
		for _, used := range selectors(rule.Expr) {
			if used.metric != "process_start_time_seconds" && !slices.Contains(hidden[rule.Alert], used.metric) { // each scrape has it
				hidden[rule.Alert] = append(hidden[rule.Alert], used.metric)
			}
		}
	}
	require.Equal(t, hidden, watched)
}

const runbooks = "https://github.com/lateen-project/lateen/blob/main/docs/runbooks.md#"

func TestEveryAlertHasARunbook(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbooks.md")
	require.NoError(t, err)
	table, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	var headings, rows, alerts []string
	for _, match := range regexp.MustCompile(`(?m)^## (Lateen\w+)$`).FindAllStringSubmatch(string(text), -1) {
		headings = append(headings, match[1])
	}
	for _, match := range regexp.MustCompile(`(?m)^\| \[(Lateen\w+)\]\(runbooks\.md#(\w+)\) \|`).FindAllStringSubmatch(string(table), -1) {
		rows = append(rows, match[1])
		require.Equal(t, strings.ToLower(match[1]), match[2])
	}
	for _, rule := range slices.Concat(group(t, "lateen"), group(t, "lateen-repositories"), group(t, "lateen-unseen")) {
		require.Equal(t, runbooks+strings.ToLower(rule.Alert), rule.Annotations["runbook_url"])
		require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		require.Contains(t, []string{"warning", "critical"}, rule.Labels["severity"], rule.Alert)
		if !slices.Contains(alerts, rule.Alert) {
			alerts = append(alerts, rule.Alert)
		}
	}
	require.ElementsMatch(t, alerts, headings, "headings of docs/runbooks.md")
	require.ElementsMatch(t, alerts, rows, "rows of the table of alerts in docs/metrics.md")
}
