// Package config parses the ConfigMaps of agents and reports each setting that cannot be used as a Problem. It never
// reads an object from a cluster.
package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Config is the effective configuration of one node. It comes from the node-agent ConfigMap, and from the backup
// repository ConfigMap for the caches of movers (velero-protocol 5.3).
type Config struct {
	Limits
	NodeRules         []NodeRule       // the source of Limits, including the rules that match only other nodes
	PriorityClassName string           // as configured; package priority decides whether it is in force
	Movers            objects.Settings // without PriorityClass, which Startup.Settings adds
}

// Limits bounds concurrent work. All numbers count movers.
type Limits struct {
	Concurrency        int // on this node
	GlobalConcurrency  int // on a node that matches no rule
	MaxConcurrency     int // the maximum over all nodes
	PrepareQueueLength int // accepted and prepared transfers in the cluster; 0: no limit

	// transfers that are accepted and not moved yet
	Cluster        int            // in the cluster; 0: no limit
	StorageClasses map[string]int // DataUploads and DataDownloads of volumes of a storage class
}

// NodeRule is one element of loadConcurrency.perNodeConfig.
type NodeRule struct {
	Nodes  metav1.LabelSelector `json:"nodeSelector"` // empty: all nodes
	Number int                  `json:"number"`       // of concurrent movers on each of these nodes
}

// Matches reports whether the rule selects nodes with these labels. An invalid selector matches no node.
func (n NodeRule) Matches(nodeLabels map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(&n.Nodes)
	return err == nil && selector.Matches(labels.Set(nodeLabels))
}

// ConcurrencyOn returns the number of concurrent movers on a node with these labels: the smallest one of all rules that match it, as
// in Velero.
func (c Config) ConcurrencyOn(nodeLabels map[string]string) int {
	here := 0
	for _, rule := range c.NodeRules {
		if rule.Matches(nodeLabels) && (here == 0 || rule.Number < here) {
			here = rule.Number
		}
	}
	return cmp.Or(here, c.GlobalConcurrency)
}

// Defaults returns Velero's defaults for an empty configuration.
func Defaults() Config {
	return Config{Limits: Limits{Concurrency: 1, GlobalConcurrency: 1, MaxConcurrency: 1}}
}

// Parse evaluates the data of a node-agent ConfigMap for a node with these labels. It is pure. A value that cannot be
// used gets a Problem and its default, and its siblings stay in effect. A list element counts as a whole or not at
// all: half a selector would select too many nodes.
func Parse(data, nodeLabels map[string]string) (Config, []Problem) {
	config := Defaults()
	text, problem := onlyValue(data)
	if problem != nil {
		return config, []Problem{*problem}
	}
	document, err := readJSON("", text)
	if err != nil {
		return config, []Problem{notJSON(SectionConfigMap, text, err)}
	}
	r := newReader(SectionConfigMap, text)
	r.object(document, r.sections(&config, nodeLabels))
	return config, r.problems
}

// onlyValue returns the value of the one key that Velero allows, whatever its name.
func onlyValue(data map[string]string) (string, *Problem) {
	problem := Problem{Section: SectionConfigMap}
	keys := slices.Sorted(maps.Keys(data))
	switch {
	case len(keys) > 1:
		problem.Reason = TooManyKeys
		problem.Message = fmt.Sprintf("%d keys, including %s and %s; keep only the key with the configuration",
			len(keys), quote(keys[0]), quote(keys[1]))
	case len(keys) == 0:
		problem.Reason, problem.Message = Empty, "no data; add one key with the configuration as JSON"
	case strings.TrimSpace(data[keys[0]]) == "":
		problem.Reason = Empty
		problem.Message = fmt.Sprintf("key %s is empty; add the configuration as JSON, at least {}", quote(keys[0]))
	default:
		return data[keys[0]], nil
	}
	return "", &problem
}

func notJSON(whole Section, text string, err error) Problem {
	problem := Problem{Section: whole, Reason: InvalidJSON, Message: "cannot parse: " + err.Error()}
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		problem.Line, problem.Column = place(text, int(syntax.Offset)-1)
		problem.Message = "invalid JSON: " + err.Error() + remedy(text)
	}
	return problem
}

// byteOrderMark starts the files of some editors. JSON forbids it (RFC 8259, 8.1).
const byteOrderMark = "\uFEFF"

// remedy returns the fix that follows the decoder's message about a text; empty if there is no special one.
func remedy(text string) string {
	switch {
	case strings.HasPrefix(text, byteOrderMark):
		return "; the text begins with a byte order mark, save it as UTF-8 without one"
	case !strings.HasPrefix(strings.TrimSpace(text), "{"):
		return "; write a JSON object that begins with {, YAML is not supported here"
	default:
		return ""
	}
}

// sections is the first level of the schema (velero-protocol 5.3).
func (r *reader) sections(config *Config, nodeLabels map[string]string) fields {
	movers := &config.Movers
	return fields{
		string(SectionLoadConcurrency):                   func(v value) { r.loadConcurrency(v, nodeLabels, config) },
		string(SectionLoadAffinity):                      func(v value) { movers.LoadAffinity = r.loadAffinity(v) },
		string(SectionBackupPVC):                         func(v value) { movers.BackupClaims = r.backupPVC(v) },
		string(SectionRestorePVC):                        func(v value) { r.restorePVC(v, movers) },
		string(SectionCachePVC):                          func(v value) { movers.Cache = r.cachePVC(v) },
		string(SectionPodResources):                      func(v value) { movers.Resources = r.podResources(v) },
		string(SectionPriorityClassName):                 set(r, r.name, &config.PriorityClassName),
		string(SectionPrivilegedFsBackup):                set(r, r.bool, &movers.Privileged),
		string(SectionPodLabels):                         func(v value) { movers.Labels = r.labels(v) },
		string(SectionPodAnnotations):                    func(v value) { movers.Annotations = r.podAnnotations(v) },
		string(SectionTolerations):                       func(v value) { movers.Tolerations = r.tolerations(v) },
		string(SectionCSISnapshotMetadataServiceConfigs): func(v value) { r.snapshotMetadata(v, movers) },
	}
}

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

// The reasons. For all except UnknownField, Ignored and Risky, the value at the Problem's path gets its default, or its list
// element is omitted.
const (
	Missing        Reason = "missing"         // a required object or field does not exist
	Empty          Reason = "empty"           // the ConfigMap has no data
	TooManyKeys    Reason = "too_many_keys"   // the ConfigMap has more than one key
	InvalidJSON    Reason = "invalid_json"    // the text is not valid JSON
	Forbidden      Reason = "forbidden"       // the agent may not read the named object
	UnknownField   Reason = "unknown_field"   // the schema has no such field
	Ignored        Reason = "ignored"         // a known value has no effect
	Risky          Reason = "risky"           // the value is in effect, and can harm
	DuplicateField Reason = "duplicate_field" // the field occurs twice, so its value is ambiguous
	WrongType      Reason = "wrong_type"      // such as a string for a number
	InvalidValue   Reason = "invalid_value"   // of the right type, but unusable
)

// Reasons lists all reasons, so that a metric can initialize a series for each.
func Reasons() []Reason {
	return []Reason{
		Missing, Empty, TooManyKeys, InvalidJSON, Forbidden, UnknownField, Ignored, Risky, DuplicateField, WrongType, InvalidValue,
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

// NoConfigMap returns the Problem of a ConfigMap that a flag names and that does not exist.
func NoConfigMap(whole Section, namespace, name string) Problem {
	effect := map[Section]string{
		SectionConfigMap:        "all settings have defaults; create it or remove --node-agent-configmap",
		SectionBackupRepository: "caches have the default size; create it or remove --backup-repository-configmap",
		SectionMaintenance:      "maintenance jobs have defaults; create it or remove --repo-maintenance-job-configmap",
	}[whole]
	return Problem{Section: whole, Path: "configmaps " + namespace + "/" + name, Reason: Missing, Message: "does not exist, so " + effect}
}

// Invalidates reports whether the reason causes a default.
func (r Reason) Invalidates() bool { return r != UnknownField && r != Ignored && r != Risky }

// Edit is the effect of an edited configuration on a running agent.
type Edit struct {
	Config  Config
	Applied []string // fields that changed and are in force
	Pending []string // fields that changed and need a restart
}

// Apply returns the effect of an edited configuration on the one in force. It is pure. What only new movers read, and
// the limits of movers, are in force at once. The agent's restart applies the rest: volumes of transfers in flight
// depend on backupPVC, restorePVC and cachePVC, and agents that have different queues would admit too many transfers.
func Apply(inForce, edited Config) Edit {
	edit := Edit{Config: edited}
	for _, field := range []struct {
		name    string
		of      func(*Config) any
		restore func() // keeps the value in force; nil if the edited value is in force at once
	}{
		{name: string(SectionPriorityClassName), of: func(c *Config) any { return c.PriorityClassName }},
		{name: string(SectionLoadConcurrency), of: func(c *Config) any { return []any{c.GlobalConcurrency, c.NodeRules, c.Cluster, c.StorageClasses} }},
		{name: string(SectionLoadAffinity), of: func(c *Config) any { return c.Movers.LoadAffinity }},
		{name: string(SectionPodResources), of: func(c *Config) any { return c.Movers.Resources }},
		{name: string(SectionPodLabels), of: func(c *Config) any { return c.Movers.Labels }},
		{name: string(SectionPodAnnotations), of: func(c *Config) any { return c.Movers.Annotations }},
		{name: string(SectionTolerations), of: func(c *Config) any { return c.Movers.Tolerations }},
		{name: string(SectionCSISnapshotMetadataServiceConfigs), of: func(c *Config) any { return c.Movers.SnapshotMetadata }},
		{name: string(SectionPrivilegedFsBackup), of: func(c *Config) any { return c.Movers.Privileged }},
		{
			name: string(SectionLoadConcurrency) + ".prepareQueueLength", of: func(c *Config) any { return c.PrepareQueueLength },
			restore: func() { edit.Config.PrepareQueueLength = inForce.PrepareQueueLength },
		},
		{
			name: string(SectionBackupPVC), of: func(c *Config) any { return c.Movers.BackupClaims },
			restore: func() { edit.Config.Movers.BackupClaims = inForce.Movers.BackupClaims },
		},
		{
			name: string(SectionRestorePVC), of: func(c *Config) any { return []any{c.Movers.IgnoreDelayBinding, c.Movers.RestoreCopies} },
			restore: func() {
				edit.Config.Movers.IgnoreDelayBinding, edit.Config.Movers.RestoreCopies = inForce.Movers.IgnoreDelayBinding, inForce.Movers.RestoreCopies
			},
		},
		{
			name: string(SectionCachePVC), of: func(c *Config) any { return c.Movers.Cache },
			restore: func() { edit.Config.Movers.Cache = inForce.Movers.Cache },
		},
	} {
		switch changed := !apiequality.Semantic.DeepEqual(field.of(&inForce), field.of(&edited)); {
		case changed && field.restore != nil:
			field.restore()
			edit.Pending = append(edit.Pending, field.name)
		case changed:
			edit.Applied = append(edit.Applied, field.name)
		}
	}
	return edit
}
