package cluster

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// NewerFields returns the versions and fields of an existing CustomResourceDefinition that the manifest lacks, sorted, as
// <version>.<path>; none of other kinds. It omits what is below them. After an apply of the manifest, the API server
// would prune them from objects.
func NewerFields(existing, manifest *unstructured.Unstructured) []string {
	if manifest.GetKind() != "CustomResourceDefinition" {
		return nil
	}
	known, unknown := definedFields(manifest), definedFields(existing)
	maps.DeleteFunc(unknown, func(field string, _ bool) bool { return known[field] })
	var newer []string
	for _, field := range slices.Sorted(maps.Keys(unknown)) {
		below := func(parent string) bool {
			return strings.HasPrefix(field, parent+".") || strings.HasPrefix(field, parent+"[]")
		}
		if !slices.ContainsFunc(newer, below) {
			newer = append(newer, field)
		}
	}
	return newer
}

// definedFields returns the versions of a CustomResourceDefinition, and the fields of each version's schema.
func definedFields(definition *unstructured.Unstructured) map[string]bool {
	fields := map[string]bool{}
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, each := range versions {
		version, _ := each.(map[string]any)
		name, _ := version["name"].(string)
		fields[name] = true
		schema, _, _ := unstructured.NestedMap(version, "schema", "openAPIV3Schema")
		addFields(fields, name, schema)
	}
	return fields
}

// addFields adds the properties of a schema, of its array items, and of its map values.
func addFields(fields map[string]bool, path string, schema map[string]any) {
	properties, _ := schema["properties"].(map[string]any)
	for name, property := range properties {
		fields[path+"."+name] = true
		nested, _ := property.(map[string]any)
		addFields(fields, path+"."+name, nested)
	}
	for _, each := range []string{"items", "additionalProperties"} {
		if nested, ok := schema[each].(map[string]any); ok {
			addFields(fields, path+"[]", nested)
		}
	}
}
