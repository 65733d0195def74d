package check

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

// Results are the evaluations of all documents.
type Results struct {
	Velero     *Velero     // nil without a cluster, or if no workload names its image
	Kubernetes *Kubernetes // nil without a cluster
	results    []Result
	nodes      []corev1.Node // nil if they are unknown
	node       *corev1.Node  // the node to describe; nil: all
}

// EvaluateAll evaluates documents in the cluster; a nil cluster is unknown.
func EvaluateAll(documents []Document, cluster *Cluster, node *corev1.Node) Results {
	all := Results{node: node}
	if cluster != nil {
		all.nodes = cluster.Nodes
	}
	for _, document := range documents {
		all.results = append(all.results, Evaluate(document, cluster))
	}
	return all
}

// Problems counts the Problems of all documents.
func (r Results) Problems() int {
	count := 0
	for _, one := range r.results {
		count += len(one.Problems)
	}
	return count
}

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
	UnknownFields  []string `json:"unknownFields"`      // fields of Velero's definitions that Lateen ignores
}

// Kubernetes is the version of the API server, compared with what Lateen was tested with.
type Kubernetes struct {
	Version        string   `json:"version"`            // such as v1.36.3
	TestedVersions []string `json:"testedVersions"`     // minor versions that Lateen was tested with, oldest first
	Untested       string   `json:"untested,omitempty"` // why this version is none of them, for people
}

// ConfigMap is the result for one ConfigMap.
type ConfigMap struct {
	Kind     Kind           `json:"kind"`              // node-agent, backup-repository or repo-maintenance-job
	Source   string         `json:"source,omitempty"`  // the ConfigMap or file; absent if none is named
	NamedBy  config.NamedBy `json:"namedBy,omitempty"` // the workload whose flag names it
	Problems []Problem      `json:"problems"`
	InEffect []Setting      `json:"inEffect"` // the effective configuration
}

// Problem is a part of the configuration that cannot be used.
type Problem struct {
	Section configmap.Section `json:"section"`          // such as loadConcurrency
	Path    string            `json:"path,omitempty"`   // such as loadConcurrency.perNodeConfig[1].number
	Line    int               `json:"line,omitempty"`   // in the file, or in the value of the ConfigMap's key, from 1
	Column  int               `json:"column,omitempty"` // in bytes, from 1; absent for a manifest
	Reason  configmap.Reason  `json:"reason"`           // a stable code: docs/configuration.md lists them
	Message string            `json:"message"`          // the cause and the fix, for people
}

// Setting is one setting in effect.
type Setting struct {
	Name   string   `json:"name"`
	Values []string `json:"values"` // for people
}

// Output returns the results for programs.
func (r Results) Output() Output {
	output := Output{Velero: r.Velero, Kubernetes: r.Kubernetes, ConfigMaps: []ConfigMap{}}
	for _, one := range r.results {
		document := one.Document
		found := ConfigMap{Kind: document.Kind, Source: document.Title, NamedBy: document.NamedBy, Problems: []Problem{}, InEffect: []Setting{}}
		for _, problem := range one.Problems {
			line, column := document.position(problem)
			found.Problems = append(found.Problems, Problem{problem.Section, problem.Path, line, column, problem.Reason, problem.Message})
		}
		for _, row := range one.rows(r.nodes, r.node) {
			found.InEffect = append(found.InEffect, Setting{Name: row.name, Values: row.text})
		}
		output.ConfigMaps = append(output.ConfigMaps, found)
	}
	return output
}

// position returns the line and column of a Problem in its source; a manifest has no columns. 0 is unknown.
func (d *Document) position(problem configmap.Problem) (line, column int) {
	if problem.Line > 0 && d.First > 0 {
		return d.First + problem.Line - 1, 0
	}
	return problem.Line, problem.Column
}
