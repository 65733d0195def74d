// Package check says what is wrong with the configuration of an agent, and what the rest of it means. It judges by
// the agent's own parser, and it never changes an object.
package check

import (
	"slices"

	"github.com/lateen-project/lateen/cmd/lateen/config"
)

// Kind is which of the ConfigMaps something is.
type Kind string

// The kinds, as the flags name them that Velero has for each.
const (
	NodeAgent        Kind = "node-agent"
	BackupRepository Kind = "backup-repository"
	Maintenance      Kind = "repo-maintenance-job"
)

// Kinds lists all of them.
func Kinds() []Kind { return []Kind{NodeAgent, BackupRepository, Maintenance} }

// Document is one ConfigMap.
type Document struct {
	Kind    Kind
	Title   string            // what the report calls it
	Data    map[string]string // as in the ConfigMap
	Missing *config.Problem   // why there is no ConfigMap although one is named
	Unset   bool              // none is named, so that everything has its default
	// NamedBy is the workload whose flag names the ConfigMap of maintenance jobs; empty where it makes no difference.
	NamedBy config.NamedBy
	First   int // the line of the manifest at which its value begins; 0 where the value has its own lines
}

// Result is what is to be said of a document.
type Result struct {
	Document   Document
	Problems   []config.Problem       // what the agent would say, and what matches nothing in the cluster
	Config     config.Config          // what is in effect; of a node-agent ConfigMap
	CacheLimit int64                  // bytes that a mover keeps in its cache; of a backup repository ConfigMap
	Jobs       config.Maintenance     // what holds for all repositories; of a maintenance ConfigMap
	Defaults   map[config.Section]int // the first Problem, from 1, for which something in a section has its default
}

// Evaluate says what a document means. What it names is looked up if there is a cluster.
func Evaluate(document Document, cluster *Cluster) Result {
	verdict := Result{
		Document: document, Config: config.Defaults(), CacheLimit: config.DefaultCacheLimit,
		Jobs: config.DefaultMaintenance(), Defaults: map[config.Section]int{},
	}
	switch {
	case document.Unset:
	case document.Missing != nil:
		verdict.fallBack(*document.Missing)
	case document.Kind == BackupRepository:
		limit, problems := config.ParseRepository(document.Data)
		verdict.CacheLimit = limit
		verdict.fallBack(problems...)
	case document.Kind == Maintenance:
		jobs, problems := config.ParseMaintenance(document.Data, "")
		verdict.Jobs = jobs
		verdict.fallBack(problems...)
		for _, key := range document.repositories() {
			_, own := config.ParseMaintenance(document.Data, key)
			verdict.fallBack(slices.DeleteFunc(own, func(p config.Problem) bool { return slices.Contains(problems, p) })...)
		}
	default:
		parsed, problems := config.Parse(document.Data, nil)
		verdict.Config = parsed
		verdict.fallBack(problems...)
	}
	if cluster != nil && document.Kind == NodeAgent {
		verdict.fallBack(cluster.invalid(&verdict.Config)...)
		verdict.Problems = slices.Concat(verdict.Problems, cluster.unmatched(verdict.Config), cluster.CopyProblems)
	}
	if cluster != nil && document.Kind == Maintenance {
		problems := cluster.invalidClass(&verdict.Jobs.PriorityClassName, config.SectionMaintenance, globalKey+".priorityClassName")
		verdict.Problems = append(verdict.Problems, problems...)
	}
	return verdict
}

// repositories are the keys that are for one repository each.
func (d *Document) repositories() []string {
	return slices.DeleteFunc(sortedNames(d.Data), func(key string) bool { return !config.IsRepositoryKey(key) })
}

// fallBack keeps Problems, and which of them were the first to give something in a section its default.
func (v *Result) fallBack(problems ...config.Problem) {
	for _, problem := range problems {
		v.Problems = append(v.Problems, problem)
		if _, known := v.Defaults[problem.Section]; !known && problem.Reason.Invalidates() {
			v.Defaults[problem.Section] = len(v.Problems)
		}
	}
}

// wholeDefault is the Problem, from 1, because of which everything has its default; 0 if there is none.
func (v *Result) wholeDefault() int {
	return max(v.Defaults[config.SectionConfigMap], v.Defaults[config.SectionBackupRepository])
}
