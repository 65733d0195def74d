package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"github.com/lateen-project/lateen/cmd/lateen/cluster"
	"github.com/lateen-project/lateen/deploy"
)

// definedCluster returns a cluster with Velero's definitions after a change.
func definedCluster(t *testing.T, change func(*unstructured.Unstructured)) *dynamicfake.FakeDynamicClient {
	t.Helper()
	var all []runtime.Object
	for _, object := range deploy.Definitions() {
		definition, err := deploy.Manifest(object)
		require.NoError(t, err)
		change(definition)
		all = append(all, definition)
	}
	kinds := map[schema.GroupVersionResource]string{cluster.Definitions(): "CustomResourceDefinitionList"}
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, all...)
}

func TestCheckWarnsOfNewerCRDs(t *testing.T) {
	fields, err := unknownFields(t.Context(), definedCluster(t, func(*unstructured.Unstructured) {}))
	require.NoError(t, err)
	require.Empty(t, fields)

	newer := definedCluster(t, func(definition *unstructured.Unstructured) {
		if definition.GetName() != "datauploads.velero.io" {
			return
		}
		versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
		properties := []string{"schema", "openAPIV3Schema", "properties", "spec", "properties"}
		version, ok := versions[0].(map[string]any)
		require.True(t, ok)
		require.NoError(t, unstructured.SetNestedField(version, "array", append(properties, "metadataServices", "type")...))
		require.NoError(t, unstructured.SetNestedField(version, "string", append(properties, "csiSnapshot", "properties", "handle", "type")...))
		require.NoError(t, unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions"))
	})
	fields, err = unknownFields(t.Context(), newer)
	require.NoError(t, err)
	require.Equal(t, []string{"DataUpload.spec.csiSnapshot.handle", "DataUpload.spec.metadataServices"}, fields)
}
