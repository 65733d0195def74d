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
		return nil, fmt.Errorf("read %s: found no ConfigMap, only %s; name a file with a ConfigMap", name, cmp.Or(strings.Join(others, ", "), "empty documents and lists"))
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
	if err := yaml.Unmarshal(text, &whole); err != nil {
		return slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool {
			return strings.HasPrefix(line, "kind:") || strings.HasPrefix(line, "apiVersion:")
		})
	}
	for _, object := range whole.Content {
		for i := 0; i < len(object.Content); i += 2 { // names and values alternate
			if object.Content[i].Value == "kind" {
				return true
			}
		}
	}
	return false
}

// maxNesting bounds nested lists: with an alias, a file may nest without end.
const maxNesting = 3

// configMaps returns the ConfigMaps of one manifest, which may be a list, and the kinds of its other objects.
func configMaps(node *yaml.Node, kind Kind, nesting int) (found []Document, others []string, err error) {
	var object struct {
		Kind     string
		Metadata struct{ Name, Namespace string }
	}
	if err := node.Decode(&object); err != nil {
		return nil, nil, err
	}
	switch {
	case object.Kind == "ConfigMap":
		document, err := readConfigMap(node, titleOf(object.Metadata.Namespace, object.Metadata.Name), kind)
		return []Document{document}, nil, err
	case strings.HasSuffix(object.Kind, "List") && nesting < maxNesting:
		var list struct{ Items []yaml.Node }
		if err := node.Decode(&list); err != nil {
			return nil, nil, err
		}
		for i := range list.Items {
			inner, skipped, err := configMaps(&list.Items[i], kind, nesting+1)
			if err != nil {
				return nil, nil, err
			}
			found, others = append(found, inner...), append(others, skipped...)
		}
		return found, others, nil
	case object.Kind == "":
		return nil, nil, nil
	default:
		return nil, []string{strings.TrimSpace(object.Kind + " " + object.Metadata.Name)}, nil
	}
}

func readConfigMap(node *yaml.Node, title string, kind Kind) (Document, error) {
	var object struct{ Data map[string]yaml.Node } // nodes know their lines
	if err := node.Decode(&object); err != nil {
		return Document{}, err
	}
	document := Document{Kind: kind, Title: title, Data: map[string]string{}}
	if document.Kind == "" {
		document.Kind = kindOf(sortedNames(object.Data))
	}
	for key, value := range object.Data {
		if value.Kind == yaml.AliasNode {
			value = *value.Alias
		}
		if value.ShortTag() != "!!str" {
			return Document{}, fmt.Errorf("line %d: data.%s of %s is not a string; write the configuration as an indented block after |", value.Line, key, title)
		}
		document.Data[key] = value.Value
		if value.Style == yaml.LiteralStyle && (len(object.Data) == 1 || key == repositoryKey) {
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
