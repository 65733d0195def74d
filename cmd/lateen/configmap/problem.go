package configmap

import "fmt"

// Section is a part of the configuration.
type Section string

// The sections. Those in lower camel case are top-level fields of the node-agent ConfigMap, except the first four.
const (
	SectionConfigMap                         Section = "configMap"        // the node-agent ConfigMap itself
	SectionBackupRepository                  Section = "backupRepository" // the backup repository ConfigMap
	SectionMaintenance                       Section = "repoMaintenance"  // the maintenance ConfigMap
	SectionMoverTemplate                     Section = "moverTemplate"    // the workload that movers inherit from
	SectionLoadConcurrency                   Section = "loadConcurrency"
	SectionLoadAffinity                      Section = "loadAffinity"
	SectionBackupPVC                         Section = "backupPVC"
	SectionRestorePVC                        Section = "restorePVC"
	SectionCachePVC                          Section = "cachePVC"
	SectionPodResources                      Section = "podResources"
	SectionPriorityClassName                 Section = "priorityClassName"
	SectionPrivilegedFsBackup                Section = "privilegedFsBackup"
	SectionPodLabels                         Section = "podLabels"
	SectionPodAnnotations                    Section = "podAnnotations"
	SectionTolerations                       Section = "tolerations"                       // since Velero 1.19
	SectionCSISnapshotMetadataServiceConfigs Section = "csiSnapshotMetadataServiceConfigs" // since Velero 1.19
)

// Sections lists all sections, so that a metric can initialize a series for each.
func Sections() []Section {
	return []Section{
		SectionConfigMap, SectionBackupRepository, SectionMaintenance, SectionMoverTemplate, SectionLoadConcurrency, SectionLoadAffinity,
		SectionBackupPVC, SectionRestorePVC, SectionCachePVC, SectionPodResources, SectionPriorityClassName,
		SectionPrivilegedFsBackup, SectionPodLabels, SectionPodAnnotations, SectionTolerations, SectionCSISnapshotMetadataServiceConfigs,
	}
}

// Reason is a stable code for the cause of a Problem.
type Reason string

// The reasons. For all except UnknownField and Ignored, the value at the Problem's path gets its default, or its list
// element is omitted.
const (
	Missing        Reason = "missing"         // a required object or field does not exist
	Empty          Reason = "empty"           // the ConfigMap has no data
	TooManyKeys    Reason = "too_many_keys"   // the ConfigMap has more than one key
	InvalidJSON    Reason = "invalid_json"    // the text is not valid JSON
	Forbidden      Reason = "forbidden"       // the agent may not read the named object
	UnknownField   Reason = "unknown_field"   // the schema has no such field
	Ignored        Reason = "ignored"         // a known value has no effect
	DuplicateField Reason = "duplicate_field" // the field occurs twice, so its value is ambiguous
	WrongType      Reason = "wrong_type"      // such as a string for a number
	InvalidValue   Reason = "invalid_value"   // of the right type, but unusable
)

// Reasons lists all reasons, so that a metric can initialize a series for each.
func Reasons() []Reason {
	return []Reason{
		Missing, Empty, TooManyKeys, InvalidJSON, Forbidden, UnknownField, Ignored, DuplicateField, WrongType, InvalidValue,
	}
}

// Problem is a part of the configuration that cannot be used.
type Problem struct {
	Section Section `json:"section"`          // such as loadConcurrency
	Path    string  `json:"path,omitempty"`   // such as loadConcurrency.perNodeConfig[1].number; absent for the ConfigMap itself
	Line    int     `json:"line,omitempty"`   // in the file, or in the value of the ConfigMap's key, from 1; absent if unknown
	Column  int     `json:"column,omitempty"` // in bytes, from 1; absent if unknown, and for a manifest
	Reason  Reason  `json:"reason"`           // a stable code: docs/configuration.md lists them
	Message string  `json:"message"`          // the cause and the fix for people, one line
}

// String formats the Problem as one line.
func (p Problem) String() string {
	place := p.Path
	if place == "" {
		place = string(p.Section)
	}
	if p.Line > 0 {
		place = fmt.Sprintf("%s (line %d, column %d)", place, p.Line, p.Column)
	}
	return place + ": " + p.Message
}

// NoNodeAgent returns the Problem of a --node-agent-configmap that does not exist.
func NoNodeAgent(namespace, name string) Problem {
	return Problem{
		Section: SectionConfigMap, Path: "configmaps " + namespace + "/" + name, Reason: Missing,
		Message: "does not exist, so all settings have defaults; create it or remove --node-agent-configmap",
	}
}

// NoRepository returns the Problem of a --backup-repository-configmap that does not exist.
func NoRepository(namespace, name string) Problem {
	return Problem{
		Section: SectionBackupRepository, Path: "configmaps " + namespace + "/" + name, Reason: Missing,
		Message: "does not exist, so caches have the default size; create it or remove --backup-repository-configmap",
	}
}

// NoMaintenance returns the Problem of a --repo-maintenance-job-configmap that does not exist.
func NoMaintenance(namespace, name string) Problem {
	return Problem{
		Section: SectionMaintenance, Path: "configmaps " + namespace + "/" + name, Reason: Missing,
		Message: "does not exist, so maintenance jobs have defaults; create it or remove --repo-maintenance-job-configmap",
	}
}

// Invalidates reports whether the reason causes a default.
func (r Reason) Invalidates() bool { return r != UnknownField && r != Ignored }
