package check

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ReadFile splits a file into documents. The file holds a YAML or JSON manifest with ConfigMaps, or the bare value of
// one. Without a kind, the keys decide the kind. A bare value is then of kind NodeAgent.
func ReadFile(name string, text []byte, kind Kind) ([]Document, error) {
	if !isManifest(text) {
		if kind == "" {
			kind = NodeAgent
		}
		return []Document{{Kind: kind, Title: name, Data: map[string]string{keyOf(kind, name): string(text)}}}, nil
	}
	var documents []Document
	var others []string
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var one yaml.Node
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		found, skipped, err := configMaps(&one, kind, 0)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		documents, others = append(documents, found...), append(others, skipped...)
	}
	if len(documents) == 0 {
		return nil, fmt.Errorf("read %s: found no ConfigMap, only %s; name a file with a ConfigMap", name, cmp.Or(strings.Join(others, ", "), "documents without a kind"))
	}
	for i := range documents {
		documents[i].Title += " in " + name
	}
	return documents, nil
}

// keyOf returns the ConfigMap key for a bare value.
func keyOf(kind Kind, name string) string {
	switch kind {
	case BackupRepository:
		return repositoryKey
	case Maintenance:
		return globalKey
	default:
		return name
	}
}

// repositoryKey is the ConfigMap key of the settings of backup repositories (velero-protocol 4.2).
const repositoryKey = "kopia"

// kindOf derives the kind of a ConfigMap from its keys.
func kindOf(keys []string) Kind {
	for _, key := range keys {
		switch {
		case key == repositoryKey:
			return BackupRepository
		case key == globalKey, strings.HasSuffix(key, "-"+repositoryKey):
			return Maintenance
		}
	}
	return NodeAgent
}

// isManifest reports whether a file is a manifest, which has a field kind. If the file is not valid YAML, it checks
// the lines.
func isManifest(text []byte) bool {
	var whole yaml.Node // no struct: the agent's parser has to find duplicate fields
	if err := yaml.Unmarshal(text, &whole); err == nil {
		for i := 0; i < len(content(&whole)); i += 2 {
			if content(&whole)[i].Value == "kind" {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool {
		return strings.HasPrefix(line, "kind:") || strings.HasPrefix(line, "apiVersion:")
	})
}

// content returns the names and values of a mapping alternately, or the items of a list.
func content(node *yaml.Node) []*yaml.Node {
	switch {
	case node.Kind == yaml.DocumentNode && len(node.Content) == 1:
		return content(node.Content[0])
	case node.Kind == yaml.MappingNode, node.Kind == yaml.SequenceNode:
		return node.Content
	default:
		return nil
	}
}

// members returns the fields of a mapping, and no fields for a list. It rejects duplicate fields, like the API
// server.
func members(node *yaml.Node) (map[string]*yaml.Node, error) {
	all := map[string]*yaml.Node{}
	if node == nil || node.Kind == yaml.SequenceNode {
		return all, nil
	}
	names := content(node)
	for i := 0; i+1 < len(names); i += 2 {
		name, value := names[i], names[i+1]
		if all[name.Value] != nil {
			return nil, fmt.Errorf("line %d: %s occurs twice, first at line %d; keep one", name.Line, name.Value, all[name.Value].Line)
		}
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		all[name.Value] = value
	}
	return all, nil
}

// scalar returns the text of a scalar node; empty for any other node.
func scalar(node *yaml.Node) string {
	if node == nil || node.Kind != yaml.ScalarNode {
		return ""
	}
	return node.Value
}

// maxNesting bounds nested lists: with an alias, a file may nest without end.
const maxNesting = 3

// configMaps returns the ConfigMaps of one manifest, which may be a list, and the kinds of its other objects.
func configMaps(node *yaml.Node, kind Kind, nesting int) (found []Document, others []string, err error) {
	object, err := members(node)
	if err != nil {
		return nil, nil, err
	}
	metadata, err := members(object["metadata"])
	if err != nil {
		return nil, nil, err
	}
	is, name := scalar(object["kind"]), scalar(metadata["name"])
	switch {
	case is == "ConfigMap":
		document, err := readConfigMap(object["data"], titleOf(scalar(metadata["namespace"]), name), kind)
		return []Document{document}, nil, err
	case strings.HasSuffix(is, "List") && object["items"] != nil && nesting < maxNesting:
		for _, item := range content(object["items"]) {
			inner, skipped, err := configMaps(item, kind, nesting+1)
			if err != nil {
				return nil, nil, err
			}
			found, others = append(found, inner...), append(others, skipped...)
		}
		return found, others, nil
	case is == "":
		return nil, nil, nil
	default:
		return nil, []string{strings.TrimSpace(is + " " + name)}, nil
	}
}

func readConfigMap(data *yaml.Node, title string, kind Kind) (Document, error) {
	document := Document{Kind: kind, Title: title, Data: map[string]string{}}
	values, err := members(data)
	if err != nil {
		return Document{}, err
	}
	if document.Kind == "" {
		document.Kind = kindOf(sortedNames(values))
	}
	for key, value := range values {
		if value.Kind != yaml.ScalarNode || value.ShortTag() != "!!str" {
			return Document{}, fmt.Errorf("line %d: data.%s of %s is not a string; write the configuration as an indented block after |", value.Line, key, title)
		}
		document.Data[key] = value.Value
		if value.Style == yaml.LiteralStyle && (len(values) == 1 || key == repositoryKey) {
			document.First = value.Line + 1
		}
	}
	return document, nil
}

func titleOf(namespace, name string) string {
	if namespace == "" {
		return "ConfigMap " + name
	}
	return "ConfigMap " + namespace + "/" + name
}
