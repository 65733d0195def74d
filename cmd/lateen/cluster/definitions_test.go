package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/deploy"
)

func TestADefinitionOfANewerVeleroIsRecognized(t *testing.T) {
	definitions, err := Manifests("velero", deploy.Definitions())
	require.NoError(t, err)
	type object = map[string]any
	list := []string{"schema", "openAPIV3Schema", "properties", "spec", "properties", "list", "items", "properties"}
	for _, definition := range definitions {
		withList, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
		require.NoError(t, err)
		require.NoError(t, unstructured.SetNestedMap(withList[0].(object), object{"known": object{}}, list...))
		require.NoError(t, unstructured.SetNestedSlice(definition.Object, withList, "spec", "versions"))
		require.NotEmpty(t, definedFields(definition))
		require.Empty(t, NewerFields(definition, definition))
		for name, test := range map[string]struct {
			change func(version object) object
			says   string
		}{
			"a field": {func(version object) object {
				require.NoError(t, unstructured.SetNestedField(version, "string", "schema", "openAPIV3Schema", "properties", "spec", "properties", "novel", "type"))
				return version
			}, ".spec.novel"},
			"a field of list items": {func(version object) object {
				require.NoError(t, unstructured.SetNestedMap(version, object{"known": object{}, "novel": object{"properties": object{"below": object{}}}}, list...))
				return version
			}, ".spec.list[].novel"},
			"a version": {func(object) object { return object{"name": "v9"} }, "v9"},
		} {
			newer := definition.DeepCopy()
			versions, _, err := unstructured.NestedSlice(newer.Object, "spec", "versions")
			require.NoError(t, err)
			version, ok := versions[0].(object)
			require.True(t, ok)
			require.NoError(t, unstructured.SetNestedSlice(newer.Object, append(versions, test.change(runtime.DeepCopyJSON(version))), "spec", "versions"))
			unknown := NewerFields(newer, definition)
			require.Len(t, unknown, 1, "%s of %s", name, definition.GetName())
			require.Contains(t, unknown[0], test.says, name)
			require.Empty(t, NewerFields(definition, newer), "an older one is no newer one")
		}
	}
}
