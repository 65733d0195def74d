package check

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/configmap"
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
func place(problem configmap.Problem) string {
	place := cmp.Or(problem.Path, "the ConfigMap")
	switch {
	case problem.Column > 0:
		place += fmt.Sprintf(", line %d, column %d", problem.Line, problem.Column)
	case problem.Line > 0:
		place += fmt.Sprintf(", line %d", problem.Line)
	}
	return place
}
