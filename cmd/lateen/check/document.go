// Package check reports the Problems of an agent's configuration and the settings in effect. It uses the agent's own
// parser and never changes an object.
package check

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

// Kind is the kind of a ConfigMap that Velero's flags name.
type Kind string

// The kinds, named after the flags of Velero.
const (
	NodeAgent        Kind = "node-agent"
	BackupRepository Kind = "backup-repository"
	Maintenance      Kind = "repo-maintenance-job"
)

// Kinds lists all kinds.
func Kinds() []Kind { return []Kind{NodeAgent, BackupRepository, Maintenance} }

// Document is one ConfigMap.
type Document struct {
	Kind    Kind
	Title   string             // its name in the report
	Data    map[string]string  // as in the ConfigMap
	Missing *configmap.Problem // set if the named ConfigMap does not exist
	Unset   bool               // no ConfigMap is named, so the defaults apply
	// NamedBy is the workload whose flag names the ConfigMap of maintenance jobs. It is empty where that does not
	// matter.
	NamedBy config.NamedBy
	First   int // the manifest line of the first line of its value; 0 if the value is not part of a manifest
}

// Result is the evaluation of a document.
type Result struct {
	Document Document
	// the Problems that the agent reports, and settings that match nothing in the cluster
	Problems   []configmap.Problem
	Parsed     int                   // the first Problems, which the text itself has
	Config     configmap.Config      // in effect, for a node-agent ConfigMap
	CacheLimit int64                 // bytes that a mover keeps in its cache, for a backup repository ConfigMap
	Jobs       configmap.Maintenance // the settings of all repositories, for a maintenance ConfigMap
}

// Evaluate parses a document. With a cluster, it also checks the objects that the document names.
func Evaluate(document Document, cluster *Cluster) Result {
	result := Result{
		Document: document, Config: configmap.Defaults(), CacheLimit: configmap.DefaultCacheLimit, Jobs: configmap.DefaultMaintenance(),
	}
	switch {
	case document.Unset:
	case document.Missing != nil:
		result.Problems = []configmap.Problem{*document.Missing}
	case document.Kind == BackupRepository:
		result.CacheLimit, result.Problems = configmap.ParseRepository(document.Data)
	case document.Kind == Maintenance:
		result.Jobs, result.Problems = configmap.ParseMaintenance(document.Data, "")
		for _, key := range document.repositories() {
			_, problems := configmap.ParseMaintenance(document.Data, key)
			for _, problem := range problems {
				if !slices.Contains(result.Problems, problem) {
					result.Problems = append(result.Problems, problem)
				}
			}
		}
	default:
		result.Config, result.Problems = configmap.Parse(document.Data, nil)
	}
	result.Parsed = len(result.Problems)
	if cluster != nil && document.Kind == NodeAgent {
		invalid := cluster.invalid(&result.Config)
		result.Problems = slices.Concat(result.Problems, invalid, cluster.unmatched(result.Config), cluster.CopyProblems)
	}
	if cluster != nil && document.Kind == Maintenance {
		problems := cluster.invalidClass(&result.Jobs.PriorityClassName, configmap.SectionMaintenance, globalKey+".priorityClassName")
		result.Problems = append(result.Problems, problems...)
	}
	return result
}

// repositories returns the keys that configure one repository each.
func (d *Document) repositories() []string {
	return slices.DeleteFunc(sortedNames(d.Data), func(key string) bool { return !configmap.IsRepositoryKey(key) })
}

func sortedNames[T any](all map[string]T) []string { return slices.Sorted(maps.Keys(all)) }

// formatSelector returns text such as "size=big,zone in (a,b)".
func formatSelector(selector metav1.LabelSelector) string {
	return metav1.FormatLabelSelector(&selector)
}

// globalKey is the ConfigMap key of the maintenance settings for all repositories (velero-protocol 4.5). The key of
// one repository ends with its type.
const globalKey = "global"
