// Package check reports the Problems of an agent's configuration and the settings in effect. It uses the agent's own
// parser and never changes an object.
package check

import (
	"maps"
	"slices"

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
	Config     configmap.Config          // in effect, for a node-agent ConfigMap
	CacheLimit int64                     // bytes that a mover keeps in its cache, for a backup repository ConfigMap
	Jobs       configmap.Maintenance     // the settings of all repositories, for a maintenance ConfigMap
	Defaults   map[configmap.Section]int // per section, the first Problem, from 1, that causes a default
}

// Evaluate parses a document. With a cluster, it also checks the objects that the document names.
func Evaluate(document Document, cluster *Cluster) Result {
	verdict := Result{
		Document: document, Config: configmap.Defaults(), CacheLimit: configmap.DefaultCacheLimit,
		Jobs: configmap.DefaultMaintenance(), Defaults: map[configmap.Section]int{},
	}
	switch {
	case document.Unset:
	case document.Missing != nil:
		verdict.fallBack(*document.Missing)
	case document.Kind == BackupRepository:
		limit, problems := configmap.ParseRepository(document.Data)
		verdict.CacheLimit = limit
		verdict.fallBack(problems...)
	case document.Kind == Maintenance:
		jobs, problems := configmap.ParseMaintenance(document.Data, "")
		verdict.Jobs = jobs
		verdict.fallBack(problems...)
		for _, key := range document.repositories() {
			_, own := configmap.ParseMaintenance(document.Data, key)
			verdict.fallBack(slices.DeleteFunc(own, func(p configmap.Problem) bool { return slices.Contains(problems, p) })...)
		}
	default:
		parsed, problems := configmap.Parse(document.Data, nil)
		verdict.Config = parsed
		verdict.fallBack(problems...)
	}
	if cluster != nil && document.Kind == NodeAgent {
		verdict.fallBack(cluster.invalid(&verdict.Config)...)
		verdict.Problems = slices.Concat(verdict.Problems, cluster.unmatched(verdict.Config), cluster.CopyProblems)
	}
	if cluster != nil && document.Kind == Maintenance {
		problems := cluster.invalidClass(&verdict.Jobs.PriorityClassName, configmap.SectionMaintenance, globalKey+".priorityClassName")
		verdict.Problems = append(verdict.Problems, problems...)
	}
	return verdict
}

// repositories returns the keys that configure one repository each.
func (d *Document) repositories() []string {
	return slices.DeleteFunc(sortedNames(d.Data), func(key string) bool { return !configmap.IsRepositoryKey(key) })
}

// fallBack adds Problems. For each section, it records the first Problem that causes a default.
func (r *Result) fallBack(problems ...configmap.Problem) {
	for _, problem := range problems {
		r.Problems = append(r.Problems, problem)
		if _, known := r.Defaults[problem.Section]; !known && problem.Reason.Invalidates() {
			r.Defaults[problem.Section] = len(r.Problems)
		}
	}
}

// wholeDefault returns the Problem, from 1, that causes the defaults everywhere; 0 if there is none.
func (r *Result) wholeDefault() int {
	return max(r.Defaults[configmap.SectionConfigMap], r.Defaults[configmap.SectionBackupRepository])
}

func sortedNames[T any](all map[string]T) []string { return slices.Sorted(maps.Keys(all)) }

// globalKey is the ConfigMap key of the maintenance settings for all repositories (velero-protocol 4.5). The key of
// one repository ends with its type.
const globalKey = "global"
