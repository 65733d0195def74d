package cluster

import (
	"encoding/json"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// PrintManifests writes a List for kubectl, as velero does, in a format: yaml, json or none.
func PrintManifests(out io.Writer, format string, manifests []*unstructured.Unstructured) error {
	if format == "" {
		return nil
	}
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": manifests}
	text, err := json.MarshalIndent(list, "", "  ")
	if err == nil && format == "yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return fmt.Errorf("print objects: %w", err)
	}
	_, err = fmt.Fprintf(out, "%s\n", text)
	return err
}
