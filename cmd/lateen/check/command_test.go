package check

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
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
	kinds := map[schema.GroupVersionResource]string{cli.Definitions(): "CustomResourceDefinitionList"}
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
	require.Equal(t, []string{"DataUpload v2alpha1.spec.csiSnapshot.handle", "DataUpload v2alpha1.spec.metadataServices"}, fields)
}

func TestCheckWarnsOfKubernetesThatWasNotTested(t *testing.T) {
	client := fake.NewClientset()
	discovery, ok := client.Discovery().(*fakediscovery.FakeDiscovery)
	require.True(t, ok)
	for gitVersion, warning := range map[string]string{
		"v1.36.3": "",
		"v1.99.0": "Warning: Kubernetes v1.99.0 is newer than 1.37, the newest version tested with Lateen; use a newer Lateen, or test a backup and a restore first\n",
	} {
		discovery.FakedServerVersion = &apiversion.Info{GitVersion: gitVersion}
		server, err := kubernetesVersion(client)
		require.NoError(t, err)
		var printed strings.Builder
		warn(&printed, nil, server)
		require.Equal(t, warning, printed.String())
	}
}
