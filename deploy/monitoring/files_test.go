// Package monitoring tests that the files for Prometheus, its operator and Grafana use only metrics and pods of
// Lateen.
package monitoring

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
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
	Type        string `json:"type"`
	Datasource  struct {
		UID string `json:"uid"`
	} `json:"datasource"`
	At struct {
		X, Y, W, H int
	} `json:"gridPos"`
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

func TestTheDashboardCanBeLaidOut(t *testing.T) {
	const columns = 24 // of Grafana's grid
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, panel := range panels(t) {
		require.NotEmpty(t, panel.Title)
		require.NotEmpty(t, panel.Description, panel.Title)
		require.False(t, ids[panel.ID], "two panels have the id of %s", panel.Title)
		ids[panel.ID] = true
		require.Equal(t, "${datasource}", panel.Datasource.UID, panel.Title)
		require.NotEmpty(t, panel.Targets, panel.Title)
		require.LessOrEqual(t, panel.At.X+panel.At.W, columns, panel.Title)
		for x := range panel.At.W {
			for y := range panel.At.H {
				position := [2]int{panel.At.X + x, panel.At.Y + y}
				require.Empty(t, taken[position], "%s overlaps another panel", panel.Title)
				taken[position] = panel.Title
			}
		}
	}
}

// Kustomize reads only the files that it names.
func TestTheKustomizationNamesEveryFile(t *testing.T) {
	kustomization := read[struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Resources  []string `json:"resources"`
		ConfigMaps []struct {
			Name      string   `json:"name"`
			Namespace string   `json:"namespace"`
			Files     []string `json:"files"`
			Options   struct {
				DisableNameSuffixHash bool              `json:"disableNameSuffixHash"`
				Labels                map[string]string `json:"labels"`
			} `json:"options"`
		} `json:"configMapGenerator"`
	}](t, "kustomization.yaml")
	named := append([]string{"kustomization.yaml"}, kustomization.Resources...)
	for _, generated := range kustomization.ConfigMaps {
		require.Equal(t, "1", generated.Options.Labels["grafana_dashboard"])
		named = append(named, generated.Files...)
	}
	var there []string
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, entry := range entries {
		if name := entry.Name(); !entry.IsDir() && !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, ".") {
			there = append(there, entry.Name())
		}
	}
	require.ElementsMatch(t, there, named)
}
