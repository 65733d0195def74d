package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// globalKey is the key of the settings for all repositories in the maintenance ConfigMap. Its priority class, labels
// and annotations take precedence over those of one repository. For all other fields, the repository takes precedence
// (velero-protocol 4.5).
const globalKey = "global"

// Maintenance is the effective maintenance configuration for the next job of one repository.
type Maintenance struct {
	PriorityClassName string              // as configured; package priority decides whether it is in force
	Unreadable        priority.Reason     // why the configured class is unknown; empty if it is known
	Jobs              objects.JobSettings // without PriorityClass
}

// DefaultMaintenance returns the settings of an empty ConfigMap: Velero keeps three jobs.
func DefaultMaintenance() Maintenance {
	return Maintenance{Jobs: objects.JobSettings{Keep: 3}}
}

// ParseMaintenance evaluates the data of a maintenance ConfigMap for the repository with that key. It is pure. It
// uses each valid field, and returns a Problem for each other one. As in Velero, a field of the repository takes
// precedence over global. The priority class, labels and annotations of global take precedence instead.
func ParseMaintenance(data map[string]string, repositoryKey string) (Maintenance, []Problem) {
	result := DefaultMaintenance()
	if data, wrapped := MaintenanceData(data); wrapped != "" {
		result, problems := ParseMaintenance(data, repositoryKey)
		for i := range problems {
			problems[i].Line, problems[i].Column = 0, 0 // they count in the text of one key
		}
		return result, append(problems, Problem{Section: SectionMaintenance, Path: wrapped, Reason: Risky, Message: "Velero's server does not read it, " +
			"so the jobs that it starts have defaults; " + createMaintenance})
	}
	if len(data) == 0 {
		result.Unreadable = priority.ConfigEmpty
		return result, []Problem{{Section: SectionMaintenance, Reason: Empty, Message: "no data; add key global with the configuration as JSON"}}
	}
	problems := unreadKeys(data)
	if _, found := data[globalKey]; !found && len(problems) > 0 {
		result.Unreadable = priority.ConfigInvalid
	}
	for _, key := range []string{globalKey, repositoryKey} {
		text, found := data[key]
		if !found {
			continue
		}
		document, err := readJSON(key, text)
		if err != nil {
			problem := notJSON(SectionMaintenance, text, err)
			problem.Path = key
			problems = append(problems, problem)
			if key == globalKey {
				result.Unreadable = priority.ConfigInvalid
			}
			continue
		}
		r := newReader(SectionMaintenance, text)
		r.object(document, r.maintenance(&result))
		problems = append(problems, r.problems...)
	}
	return result, problems
}

const createMaintenance = "create the ConfigMap with --from-file=global=FILE, where FILE has the fields of a job at the top level"

// MaintenanceData returns the data of a maintenance ConfigMap by its keys. A lone file with the keys in its text, such as
// {"global": {...}} under config.json, is read as it is meant; wrapped is then the name of that file.
func MaintenanceData(data map[string]string) (byKey map[string]string, wrapped string) {
	if len(data) != 1 {
		return data, ""
	}
	byKey = map[string]string{}
	var inner map[string]json.RawMessage
	for wrapped = range data {
		if isMaintenanceKey(wrapped) || json.Unmarshal([]byte(data[wrapped]), &inner) != nil || len(inner) == 0 {
			return data, ""
		}
	}
	for key, value := range inner {
		if !isMaintenanceKey(key) {
			return data, ""
		}
		byKey[key] = string(value)
	}
	return byKey, wrapped
}

func isMaintenanceKey(key string) bool { return key == globalKey || IsRepositoryKey(key) }

// IsRepositoryKey reports whether a key of the maintenance ConfigMap has the form of one repository:
// <namespace>-<location>-<type>.
func IsRepositoryKey(key string) bool {
	return strings.HasSuffix(key, "-"+velerov1.BackupRepositoryTypeKopia) || strings.HasSuffix(key, "-"+velerov1.BackupRepositoryTypeRestic)
}

// unreadKeys returns Problems for keys that neither Velero nor Lateen reads. An example is the key of a file with the
// fields of a job (--from-file=config.json).
func unreadKeys(data map[string]string) (problems []Problem) {
	reason := Ignored
	if _, found := data[globalKey]; !found {
		reason = InvalidValue // it may hold the settings for all repositories
	}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if isMaintenanceKey(key) {
			continue
		}
		problems = append(problems, Problem{Section: SectionMaintenance, Reason: reason, Message: "unknown key " + quote(key) + ": " +
			"key global is for all repositories, key <namespace>-<location>-kopia for one; " + createMaintenance})
	}
	return problems[:min(len(problems), maxProblems)]
}

// maintenance is the schema of one key. The key global is read first.
func (r *reader) maintenance(into *Maintenance) fields {
	jobs := &into.Jobs
	// unless skips a field that global already sets.
	unless := func(reported bool, read func(value)) func(value) {
		if !reported {
			return read
		}
		return func(v value) {
			r.problem(v, Ignored, "ignored, because key %s sets it for all repositories; remove one of them", globalKey)
		}
	}
	return fields{
		"loadAffinity": func(v value) {
			if own := r.jobAffinity(v); len(own) > 0 { // else that of global, as in Velero
				jobs.LoadAffinity = own
			}
		},
		"cachePVC":                  func(v value) { jobs.Cache = r.jobCache(v, jobs.Cache) },
		"podResources":              orGlobal(r, r.podResources, &jobs.Resources, len(jobs.Resources.Requests)+len(jobs.Resources.Limits) > 0),
		"tolerations":               orGlobal(r, r.tolerations, &jobs.Tolerations, len(jobs.Tolerations) > 0),
		"keepLatestMaintenanceJobs": set(r, r.atLeast(0), &jobs.Keep),
		"priorityClassName": unless(into.PriorityClassName != "", func(v value) {
			before := r.invalid
			if name := r.name(v); r.invalid == before {
				into.PriorityClassName = name
			} else {
				into.Unreadable = priority.ConfigInvalid
			}
		}),
		"podLabels":      unless(len(jobs.Labels) > 0, func(v value) { jobs.Labels = r.labels(v) }),
		"podAnnotations": unless(len(jobs.Annotations) > 0, func(v value) { jobs.Annotations = r.podAnnotations(v) }),
	}
}

// orGlobal reads a field whose valid parts are in force, unless global sets it: then all of it must be valid to replace that.
func orGlobal[T any](r *reader, read func(value) T, into *T, global bool) func(value) {
	return func(v value) {
		before := r.invalid
		if got := read(v); r.invalid == before || !global {
			*into = got
		}
	}
}

// jobCache reads the volume of the cache of jobs. A field that is missing is that of global, and if one is invalid, both are.
func (r *reader) jobCache(v value, global *objects.JobCache) *objects.JobCache {
	cache := ptr.Deref(global, objects.JobCache{})
	before := r.invalid
	r.object(v, fields{
		"storageClass": set(r, r.name, &cache.StorageClass),
		"size":         set(r, r.quantity, &cache.Size),
	})
	if r.invalid == before && cache.StorageClass != "" && cache.Size.Sign() > 0 {
		return &cache
	}
	if r.invalid == before {
		r.problem(v, Missing, "storageClass or size is missing; set both, such as size 10Gi, or remove cachePVC")
	}
	return global
}

// jobAffinity returns the alternatives for the nodes of a job. The storage class does not matter: a job
// moves no volume.
func (r *reader) jobAffinity(v value) []metav1.LabelSelector {
	var all []metav1.LabelSelector
	for _, element := range r.loadAffinity(v) {
		all = append(all, element.Nodes)
	}
	return all
}

const (
	// repositoryType is the only repository type of movers since Velero 1.17. It is also the key of its settings in
	// the backup repository ConfigMap.
	repositoryType = "kopia"
	// DefaultCacheLimit is the default size of a mover's cache, in bytes: Velero's 5000 MB of 2^20 bytes.
	DefaultCacheLimit int64 = 5000 << Mebi
	// Mebi is Velero's MB, as a shift.
	Mebi = 20
)

// ParseRepository evaluates the data of a backup repository ConfigMap: the cache limit of a mover, in bytes. It is
// pure. The other settings are for Velero's server, and only the server can validate them.
func ParseRepository(data map[string]string) (cacheLimit int64, problems []Problem) {
	text, problem := repositoryValue(data)
	if problem != nil {
		return DefaultCacheLimit, []Problem{*problem}
	}
	document, err := readJSON(repositoryType, text)
	if err != nil {
		return DefaultCacheLimit, []Problem{notJSON(SectionBackupRepository, text, err)}
	}
	r := newReader(SectionBackupRepository, text)
	r.exact = true // Velero decodes this one into a map
	limit := 0
	r.object(document, fields{
		"cacheLimitMB":            func(v value) { limit = r.megabytes(v) },
		"fullMaintenanceInterval": func(value) {},
	})
	if limit == 0 {
		return DefaultCacheLimit, r.problems
	}
	return int64(limit) << Mebi, r.problems
}

// repositoryValue returns the value of the key kopia. It ignores the keys of other types.
func repositoryValue(data map[string]string) (string, *Problem) {
	problem := Problem{Section: SectionBackupRepository}
	text, found := data[repositoryType]
	keys := slices.Sorted(maps.Keys(data))
	switch {
	case len(keys) == 0:
		problem.Reason, problem.Message = Empty, "no data; add key kopia with the settings as JSON"
	case !found:
		problem.Reason = Missing
		problem.Message = fmt.Sprintf("key kopia is missing, there is %s; rename it to kopia, the only repository type that movers support", quote(keys[0]))
	case strings.TrimSpace(text) == "":
		problem.Reason, problem.Message = Empty, "key kopia is empty; add the settings as JSON, at least {}"
	default:
		return text, nil
	}
	return "", &problem
}

// megabytes reads an integer from 1, with or without quotes. Velero's server passes both to movers as text.
func (r *reader) megabytes(v value) int {
	if v.kind() == isString {
		return r.integer(v, r.string(v), 1)
	}
	return r.number(v, 1)
}
