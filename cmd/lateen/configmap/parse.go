package configmap

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

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
		string(SectionCSISnapshotMetadataServiceConfigs): r.snapshotMetadata,
	}
}
