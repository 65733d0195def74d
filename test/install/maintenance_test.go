package install

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lateen-project/lateen/test/testenv"
)

// repository makes a BackupRepository that Velero's server would maintain every hour.
func (e *env) repository(name, kind string) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "velero.io/v1", "kind": "BackupRepository",
		"metadata": map[string]any{"name": name, "namespace": e.namespace},
		"spec": map[string]any{
			"backupStorageLocation": "default", "maintenanceFrequency": "1h0m0s", "repositoryType": kind,
			"resticIdentifier": "", "volumeNamespace": "app",
		},
	}}
	require.NoError(e, testenv.Apply(soon(e.T), plane.Admin(), object))
}

func (e *env) frequency(name string) string {
	repositories := e.dynamic.Resource(schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: "backuprepositories"})
	found, err := repositories.Namespace(e.namespace).Get(soon(e.T), name, metav1.GetOptions{})
	require.NoError(e, err)
	frequency, _, _ := unstructured.NestedString(found.Object, "spec", "maintenanceFrequency")
	return frequency
}

func TestAgentsMaintainWhileTheServerWaitsForAYear(t *testing.T) {
	const ofAgents, ofServer = "--repo-maintenance-frequency=2h0m0s", "--default-repo-maintain-frequency=8760h0m0s"
	s := newEnv(t)
	args := func() (agents, server []string) {
		deployment := s.server()
		return s.agents().Spec.Template.Spec.Containers[0].Args, deployment.Spec.Template.Spec.Containers[0].Args
	}
	s.install("--repo-maintenance-frequency=2h")
	agents, server := args()
	require.Contains(t, agents, ofAgents)
	require.Contains(t, server, ofServer)

	s.repository("app-default-kopia-x", "kopia")
	out, _ := s.install("--apply", "--image=velero/velero:v1.18.2") // by somebody who does not know of it
	require.Contains(t, out, "DaemonSet node-agent keeps "+ofAgents+"\n")
	agents, server = args()
	require.Contains(t, agents, ofAgents)
	require.Contains(t, server, ofServer)
	require.Equal(t, "8760h0m0s", s.frequency("app-default-kopia-x"), "or the server would maintain it too")

	s.install("--apply", "--repo-maintenance-frequency=0")
	agents, server = args()
	require.NotContains(t, agents, ofAgents)
	require.NotContains(t, server, ofServer)
	require.Equal(t, "1h0m0s", s.frequency("app-default-kopia-x"), "or nobody would maintain it")
}
