package config

import (
	"cmp"
	"fmt"
)

// Section is a part of the configuration.
type Section string

// The sections; those in lower camel case are top-level fields of the node-agent ConfigMap.
const (
	SectionConfigMap                         Section = "configMap"        // the node-agent ConfigMap itself
	SectionBackupRepository                  Section = "backupRepository" // the backup repository ConfigMap
	SectionMaintenance                       Section = "repoMaintenance"  // the maintenance ConfigMap
	SectionMoverTemplate                     Section = "moverTemplate"    // the workload that movers take after
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

// Sections lists all of them, so that a metric can start at 0 for each.
func Sections() []Section {
	return []Section{
		SectionConfigMap, SectionBackupRepository, SectionMaintenance, SectionMoverTemplate, SectionLoadConcurrency, SectionLoadAffinity,
		SectionBackupPVC, SectionRestorePVC, SectionCachePVC, SectionPodResources, SectionPriorityClassName,
		SectionPrivilegedFsBackup, SectionPodLabels, SectionPodAnnotations, SectionTolerations, SectionCSISnapshotMetadataServiceConfigs,
	}
}

// Reason is a stable word for what is wrong.
type Reason string

// The reasons. After all but UnknownField and Ignored the value at the Problem's path has its default, or the element
// of a list in which it stands is left out.
const (
	Missing        Reason = "missing"         // an object or a field that is needed is not there
	Empty          Reason = "empty"           // the ConfigMap has no data
	TooManyKeys    Reason = "too_many_keys"   // the ConfigMap has more than one key
	InvalidJSON    Reason = "invalid_json"    // it does not parse
	Forbidden      Reason = "forbidden"       // the agent may not read what is named
	UnknownField   Reason = "unknown_field"   // nobody knows the field
	Ignored        Reason = "ignored"         // a value that is known has no effect
	DuplicateField Reason = "duplicate_field" // which of the two is meant cannot be known
	WrongType      Reason = "wrong_type"      // such as a string for a number
	InvalidValue   Reason = "invalid_value"   // of the right type, and unusable
)

// Reasons lists all of them, so that a metric can start at 0 for each.
func Reasons() []Reason {
	return []Reason{
		Missing, Empty, TooManyKeys, InvalidJSON, Forbidden, UnknownField, Ignored, DuplicateField, WrongType, InvalidValue,
	}
}

// Problem is something in the configuration that could not be used.
type Problem struct {
	Section Section
	Path    string // such as loadConcurrency.perNodeConfig[1].number; empty for the ConfigMap itself
	Line    int    // in the value of the ConfigMap's key, from 1; 0 where there is none
	Column  int    // in bytes, from 1; 0 where there is none
	Reason  Reason
	Message string // what is wrong and what to do, one line
}

// String is the problem in one line.
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

// NoNodeAgentConfigMap is the Problem of an agent whose --node-agent-configmap does not exist.
func NoNodeAgentConfigMap(namespace, name string) Problem {
	return Problem{
		Section: SectionConfigMap, Path: object{resource: "configmaps", namespace: namespace, name: name}.String(), Reason: Missing,
		Message: "it does not exist, so everything has its default; create it, or drop --node-agent-configmap",
	}
}

// NoRepositoryConfigMap is the same for --backup-repository-configmap.
func NoRepositoryConfigMap(namespace, name string) Problem {
	return Problem{
		Section: SectionBackupRepository, Path: object{resource: "configmaps", namespace: namespace, name: name}.String(), Reason: Missing,
		Message: "it does not exist, so caches have their default size; create it, or drop --backup-repository-configmap",
	}
}

// NoMaintenanceConfigMap is the same for --repo-maintenance-job-configmap.
func NoMaintenanceConfigMap(namespace, name string) Problem {
	return Problem{
		Section: SectionMaintenance, Path: object{resource: "configmaps", namespace: namespace, name: name}.String(), Reason: Missing,
		Message: "it does not exist, so maintenance jobs have defaults; create it, or drop --repo-maintenance-job-configmap",
	}
}

// setPaths gives the problems that are those of a whole object its name.
func (o object) setPaths(problems []Problem) {
	for i, problem := range problems {
		problems[i].Path = cmp.Or(problem.Path, o.String())
	}
}

// Invalidates tells whether a value has its default because of this.
func (r Reason) Invalidates() bool { return r != UnknownField && r != Ignored }
