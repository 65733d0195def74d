package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Parse says what the data of a node-agent ConfigMap means for a node with these labels. It is pure, and
// it never half-applies: a section is used as it is written, or has its default and a Problem that says
// so. Only a field that nobody knows leaves its section in use.
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

// onlyValue is the value of the one key that Velero allows, whatever its name.
func onlyValue(data map[string]string) (string, *Problem) {
	problem := Problem{Section: SectionConfigMap}
	keys := slices.Sorted(maps.Keys(data))
	switch {
	case len(keys) > 1:
		problem.Reason = TooManyKeys
		problem.Message = fmt.Sprintf("it has %d keys, %s and %s among them; keep the one with the configuration",
			len(keys), brief(keys[0]), brief(keys[1]))
	case len(keys) == 0:
		problem.Reason, problem.Message = Empty, "it has no data; add one key with the configuration as JSON"
	case strings.TrimSpace(data[keys[0]]) == "":
		problem.Reason = Empty
		problem.Message = fmt.Sprintf("its key %s is empty; put the configuration there as JSON, at least {}", brief(keys[0]))
	default:
		return data[keys[0]], nil
	}
	return "", &problem
}

func notJSON(whole Section, text string, err error) Problem {
	problem := Problem{Section: whole, Reason: InvalidJSON, Message: "it cannot be read: " + err.Error()}
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		problem.Line, problem.Column = place(text, int(syntax.Offset)-1)
		problem.Message = "it is not JSON: " + err.Error() + remedy(text)
	}
	return problem
}

// byteOrderMark is what some editors begin a text with; JSON has none (RFC 8259, 8.1).
const byteOrderMark = "\uFEFF"

// remedy goes on after what JSON's decoder says of a text, if there is a word more to say.
func remedy(text string) string {
	switch {
	case strings.HasPrefix(text, byteOrderMark):
		return "; it begins with a byte order mark, save it as UTF-8 without one"
	case !strings.HasPrefix(strings.TrimSpace(text), "{"):
		return "; write an object that begins with {, YAML is not understood here"
	default:
		return ""
	}
}

// sections is the schema's first level (velero-protocol 5.3).
func (r *reader) sections(config *Config, nodeLabels map[string]string) fields {
	movers := &config.Movers
	return fields{
		string(SectionLoadConcurrency):    func(v value) { r.loadConcurrency(v, nodeLabels, config) },
		string(SectionLoadAffinity):       section(r, r.loadAffinity, &movers.LoadAffinity),
		string(SectionBackupPVC):          section(r, r.backupPVC, &movers.BackupClaims),
		string(SectionRestorePVC):         section(r, r.restorePVC, &movers.IgnoreDelayBinding),
		string(SectionCachePVC):           section(r, r.cachePVC, &movers.Cache),
		string(SectionPodResources):       section(r, r.podResources, &movers.Resources),
		string(SectionPriorityClassName):  section(r, r.name, &config.PriorityClassName),
		string(SectionPrivilegedFsBackup): section(r, r.bool, &movers.Privileged),
		string(SectionPodLabels):          section(r, r.labels, &movers.Labels),
		string(SectionPodAnnotations):     section(r, r.podAnnotations, &movers.Annotations),
	}
}

// section keeps what was read only if all of it can be used.
func section[T any](r *reader, read func(value) T, into *T) func(value) {
	return func(v value) {
		before := r.spoiled
		if got := read(v); r.spoiled == before {
			*into = got
		}
	}
}
