package check

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

// Output is the output of `lateen check -o json`. New fields may be added, and no field changes its meaning.
type Output struct {
	Velero     *Velero     `json:"velero,omitempty"`     // absent for a file alone
	Kubernetes *Kubernetes `json:"kubernetes,omitempty"` // absent for a file alone
	ConfigMaps []ConfigMap `json:"configMaps"`
}

// Velero is the version of Velero, compared with what Lateen was tested with.
type Velero struct {
	Image          string   `json:"image"`              // of movers and server
	TestedVersions []string `json:"testedVersions"`     // minor versions that Lateen was tested with, oldest first
	Untested       string   `json:"untested,omitempty"` // why this version is none of them, for people
	UnknownFields  []string `json:"unknownFields"`      // fields of Velero's definitions that Lateen ignores, such as DataUpload v2alpha1.spec.cause
}

// Kubernetes is the version of the API server, compared with what Lateen was tested with.
type Kubernetes struct {
	Version        string   `json:"version"`            // such as v1.36.3
	TestedVersions []string `json:"testedVersions"`     // minor versions that Lateen was tested with, oldest first
	Untested       string   `json:"untested,omitempty"` // why this version is none of them, for people
}

// ConfigMap is the result for one ConfigMap.
type ConfigMap struct {
	Kind             Kind                `json:"kind"`              // node-agent, backup-repository or repo-maintenance-job
	Source           string              `json:"source,omitempty"`  // the ConfigMap or file; absent if none is named
	NamedBy          config.NamedBy      `json:"namedBy,omitempty"` // the workload whose flag names it
	Problems         []configmap.Problem `json:"problems"`
	InEffect         Settings            `json:"inEffect"`                   // the effective configuration
	ConcurrentMovers int                 `json:"concurrentMovers,omitempty"` // with --node: the limit on that node
	Repositories     []string            `json:"repositories,omitempty"`     // keys of the repositories that have settings of their own
}

// EvaluateAll evaluates documents in the cluster; a nil cluster is unknown. The limit of concurrent movers is that of
// the node, if there is one.
func EvaluateAll(documents []Document, cluster *Cluster, node *corev1.Node) Output {
	output := Output{ConfigMaps: []ConfigMap{}}
	for _, document := range documents {
		result := Evaluate(document, cluster)
		found := ConfigMap{
			Kind: document.Kind, Source: document.Title, NamedBy: document.NamedBy, Problems: []configmap.Problem{}, InEffect: result.inEffect(),
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

// Problems counts the Problems of all ConfigMaps.
func (o Output) Problems() int {
	count := 0
	for _, one := range o.ConfigMaps {
		count += len(one.Problems)
	}
	return count
}
