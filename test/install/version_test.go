package install

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestVersionsAndNamesComeFromTheCluster(t *testing.T) {
	s := newEnv(t)
	out, _ := s.succeeds("", "version")
	require.Regexp(t, `^Client: \S+\nAgents: none\nVelero: none\n$`, out)
	s.installVelero("--use-node-agent")
	out, _ = s.succeeds("", "version")
	require.Regexp(t, `\nAgents: velero/velero:v1\.18\.3, DaemonSet node-agent: \d+ of \d+ ready, \d+ updated\nVelero: velero/velero:v1\.18\.3\n$`, out)
	out, reported := s.succeeds("", "check")
	require.Contains(t, out, "velero: velero/velero:v1.18.3 (Lateen is tested with Velero 1.17, 1.18)\n")
	require.Regexp(t, `kubernetes: v1\.\d+\.\d+ \(Lateen is tested with Kubernetes [0-9., ]+\)\n`, out)
	require.Empty(t, reported)

	patch := `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"velero/velero:v1.99.0"}]`
	_, err := s.kube.AppsV1().Deployments(s.namespace).Patch(soon(t), deploy.VeleroDeployment, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
	_, reported = s.succeeds("", "check") // it is no Problem
	require.Equal(t, "Warning: Velero v1.99.0 is newer than 1.18, the newest version tested with Lateen; use a newer Lateen, or test a backup and a restore first\n", reported)

	w, err := testenv.Open(soon(t), plane.Admin(), s.namespace)
	require.NoError(t, err)
	app, err := w.SourcePod(soon(t), "app", "no-such-node", testenv.EmptyDir("data"))
	require.NoError(t, err)
	backup, err := w.Backup(soon(t), "nightly")
	require.NoError(t, err)
	created, err := w.PodVolumeBackup(soon(t), backup, app, "data")
	require.NoError(t, err)
	completed, err := program(soon(t), t, "lateen", "__complete", "explain", "--namespace="+s.namespace, "--kubeconfig="+s.kubeconfig, "pvb/").Output()
	require.NoError(t, err)
	require.Equal(t, "pvb/"+created.Name, strings.Split(string(completed), "\n")[0])
}
