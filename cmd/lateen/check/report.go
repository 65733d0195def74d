package check

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/check/preflight"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
)

// Write prints the results for people. It returns the write error.
func (o Output) Write(to io.Writer) error {
	var text strings.Builder
	if o.Kubernetes != nil {
		fmt.Fprintf(&text, "kubernetes: %s (Lateen is tested with Kubernetes %s)\n", o.Kubernetes.Version, strings.Join(o.Kubernetes.TestedVersions, ", "))
	}
	if o.Velero != nil {
		fmt.Fprintf(&text, "velero: %s (Lateen is tested with Velero %s)\n", o.Velero.Image, strings.Join(o.Velero.TestedVersions, ", "))
	}
	if len(o.Checks) > 0 {
		text.WriteString("\nchecks:\n")
	}
	for _, one := range o.Checks {
		fmt.Fprintf(&text, "  %s %s: %s\n", marks()[one.Status], one.Check, one.Message)
		if one.Remedy != "" {
			fmt.Fprintf(&text, "      %s\n", one.Remedy)
		}
	}
	for _, one := range o.ConfigMaps {
		if text.Len() > 0 {
			text.WriteString("\n")
		}
		if err := one.write(&text); err != nil {
			return err
		}
	}
	_, err := io.WriteString(to, text.String())
	return err
}

func marks() map[preflight.Status]string {
	return map[preflight.Status]string{preflight.OK: "√", preflight.Warning: "!", preflight.Failed: "×", preflight.Unknown: "?"}
}

func (c *ConfigMap) write(text *strings.Builder) error {
	text.WriteString(c.heading() + "\n")
	for i, problem := range c.Problems {
		fmt.Fprintf(text, "%4d. %s: %s\n", i+1, place(problem), problem.Message)
	}
	if len(c.Problems) == 0 {
		text.WriteString("  No problems.\n")
	}
	if c.ConcurrentMovers > 0 {
		fmt.Fprintf(text, "  Concurrent movers on the node: %d\n", c.ConcurrentMovers)
	}
	if len(c.Repositories) > 0 {
		fmt.Fprintf(text, "  Repositories with settings of their own: %s\n", strings.Join(c.Repositories, ", "))
	}
	if c.Kind == NodeAgent && cmp.Or(c.InEffect.PodResources["memoryRequest"], c.InEffect.PodResources["memoryLimit"]) == "" {
		text.WriteString("  Without a memory request, the kubelet evicts movers first; set podResources.memoryRequest.\n")
	}
	settings, err := yaml.Marshal(c.InEffect)
	if err != nil {
		return fmt.Errorf("encode settings: %w", err)
	}
	text.WriteString("  In effect:\n")
	for line := range strings.Lines(string(settings)) {
		text.WriteString("    " + line)
	}
	return nil
}

func (c *ConfigMap) heading() string {
	switch {
	case c.Source == "" && c.Kind == Maintenance:
		return fmt.Sprintf("%s: neither the agents nor Velero's server set --%s-configmap", c.Kind, c.Kind)
	case c.Source == "":
		return fmt.Sprintf("%s: --%s-configmap is not set", c.Kind, c.Kind)
	case c.NamedBy != "":
		return fmt.Sprintf("%s: %s, named by %s", c.Kind, c.Source, c.NamedBy)
	}
	return fmt.Sprintf("%s: %s", c.Kind, c.Source)
}

// place returns the location of a Problem in its ConfigMap.
func place(problem config.Problem) string {
	place := cmp.Or(problem.Path, "the ConfigMap")
	switch {
	case problem.Column > 0:
		place += fmt.Sprintf(", line %d, column %d", problem.Line, problem.Column)
	case problem.Line > 0:
		place += fmt.Sprintf(", line %d", problem.Line)
	}
	return place
}

// Output is the output of `lateen check -o json`. New fields may be added, and no field changes its meaning.
type Output struct {
	Velero     *Velero     `json:"velero,omitempty"`     // absent for a file alone
	Kubernetes *Kubernetes `json:"kubernetes,omitempty"` // absent for a file alone
	// Checks are those of the cluster; absent for a file. A failed one counts as a Problem.
	Checks     []preflight.Finding `json:"checks,omitempty"`
	ConfigMaps []ConfigMap         `json:"configMaps"`
}

// Velero is the version of Velero, compared with what Lateen was tested with.
type Velero struct {
	Image          string   `json:"image"`              // of movers and server
	TestedVersions []string `json:"testedVersions"`     // minor versions that Lateen was tested with, oldest first
	Untested       string   `json:"untested,omitempty"` // why this version is none of them, for people
	UnknownFields  []string `json:"unknownFields"`      // fields of Velero's definitions that Lateen does not know, such as DataUpload v2alpha1.spec.cause
}

// Kubernetes is the version of the API server, compared with what Lateen was tested with.
type Kubernetes struct {
	Version        string   `json:"version"`            // such as v1.36.3
	TestedVersions []string `json:"testedVersions"`     // minor versions that Lateen was tested with, oldest first
	Untested       string   `json:"untested,omitempty"` // why this version is none of them, for people
}

// ConfigMap is the result for one ConfigMap.
type ConfigMap struct {
	Kind             Kind             `json:"kind"`              // node-agent, backup-repository or repo-maintenance-job
	Source           string           `json:"source,omitempty"`  // the ConfigMap or file; absent if none is named
	NamedBy          startup.NamedBy  `json:"namedBy,omitempty"` // the workload whose flag names it
	Problems         []config.Problem `json:"problems"`
	InEffect         Settings         `json:"inEffect"`                   // the effective configuration
	ConcurrentMovers int              `json:"concurrentMovers,omitempty"` // with --node: the limit on that node
	Repositories     []string         `json:"repositories,omitempty"`     // keys of the repositories that have settings of their own
}

// EvaluateAll evaluates documents in the cluster; a nil cluster is unknown. The limit of concurrent movers is that of
// the node, if there is one.
func EvaluateAll(documents []Document, cluster *Cluster, node *corev1.Node) Output {
	output := Output{ConfigMaps: []ConfigMap{}}
	for _, document := range documents {
		result := Evaluate(document, cluster)
		found := ConfigMap{
			Kind: document.Kind, Source: document.Title, NamedBy: document.NamedBy, Problems: []config.Problem{}, InEffect: result.inEffect(),
		}
		for _, problem := range result.Problems {
			if problem.Line > 0 && document.First > 0 {
				problem.Line, problem.Column = document.First+problem.Line-1, 0 // a manifest indents the value
			}
			found.Problems = append(found.Problems, problem)
		}
		switch {
		case document.Kind == Maintenance:
			found.Repositories = document.repositories()
		case document.Kind == NodeAgent && node != nil:
			found.ConcurrentMovers = result.Config.ConcurrencyOn(node.Labels)
		}
		output.ConfigMaps = append(output.ConfigMaps, found)
	}
	return output
}

// Problems counts the Problems of all ConfigMaps and the failed checks.
func (o Output) Problems() int {
	count := 0
	for _, one := range o.Checks {
		if one.Status == preflight.Failed {
			count++
		}
	}
	for _, one := range o.ConfigMaps {
		count += len(one.Problems)
	}
	return count
}
