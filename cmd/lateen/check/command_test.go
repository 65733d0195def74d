package check

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/objects"
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
		version := versions[0].(map[string]any)
		require.NoError(t, unstructured.SetNestedField(version, "array", append(properties, "metadataServices", "type")...))
		require.NoError(t, unstructured.SetNestedField(version, "string", append(properties, "csiSnapshot", "properties", "handle", "type")...))
		require.NoError(t, unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions"))
	})
	fields, err = unknownFields(t.Context(), newer)
	require.NoError(t, err)
	require.Equal(t, []string{"DataUpload v2alpha1.spec.csiSnapshot.handle", "DataUpload v2alpha1.spec.metadataServices"}, fields)
}

func TestCheckWarnsOfVersionsThatWereNotTested(t *testing.T) {
	client := fake.NewClientset()
	const remedy = "; use a newer Lateen, or test a backup and a restore first\n"
	for versions, warnings := range map[[2]string]string{
		{"v1.18.3", "v1.36.3"}: "",
		{"v1.99.0", "v1.99.1"}: "Warning: Kubernetes v1.99.1 is newer than 1.37, the newest version tested with Lateen" + remedy +
			"Warning: Velero v1.99.0 is newer than 1.18, the newest version tested with Lateen" + remedy,
	} {
		installation := &Installation{Agents: &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "velero/velero:" + versions[0]}}}}}
		velero, err := veleroVersion(t.Context(), definedCluster(t, func(*unstructured.Unstructured) {}), installation)
		require.NoError(t, err)
		client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &apiversion.Info{GitVersion: versions[1]}
		server, err := kubernetesVersion(client)
		require.NoError(t, err)
		var printed strings.Builder
		warn(&printed, velero, server)
		require.Equal(t, warnings, printed.String())
	}
}

// Agents inherit what a policy may refuse.
func TestTheDryRunOfMoversHasWhatAgentsInherit(t *testing.T) {
	template := func(secret string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "velero", Image: "velero", Command: []string{"/velero"}, Args: []string{"server"}}},
			Volumes:    []corev1.Volume{{Name: secret, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}}},
		}}
	}
	agents, server := template("of-agents"), &appsv1.Deployment{}
	agents.Spec.Containers[0].Args = []string{"node-agent", "server"}
	server.Spec.Template = template("of-server")
	server.Spec.Template.Spec.ServiceAccountName = "velero"
	movers := func() objects.Template {
		return (&Installation{Agents: &agents, Server: server}).preflight(nil, nil, nil).Movers
	}
	require.Equal(t, agents.Spec.Volumes, movers().Volumes)
	require.Equal(t, "velero", movers().ServiceAccount)
	agents.Spec.Containers[0].Args = []string{"node-agent", "--mover-template=deployment/velero"}
	require.Equal(t, server.Spec.Template.Spec.Volumes, movers().Volumes)
}
