// Package monitoring tests that the files for Prometheus, its operator and Grafana use only metrics and pods of
// Lateen.
package monitoring

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/deploy"
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
	require.Equal(t, deploy.DefaultNamespace, monitor.Metadata.Namespace)
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
	ID          int    `json:"id"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Datasource  struct {
		UID string `json:"uid"`
	} `json:"datasource"`
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

func TestEveryPanelIsExplainedAndHasItsSource(t *testing.T) {
	ids := map[int]bool{}
	for _, panel := range panels(t) {
		require.NotEmpty(t, panel.Title)
		require.NotEmpty(t, panel.Description, panel.Title)
		require.False(t, ids[panel.ID], "two panels have the id of %s", panel.Title)
		ids[panel.ID] = true
		require.Equal(t, "${datasource}", panel.Datasource.UID, panel.Title)
		require.NotEmpty(t, panel.Targets, panel.Title)
	}
}
