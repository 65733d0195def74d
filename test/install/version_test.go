package install

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/testenv"
)

func TestVersionsAndNamesComeFromTheCluster(t *testing.T) {
	s := newEnv(t)
	s.define()
	out, _ := s.succeeds("", "version")
	require.Regexp(t, `^Client: \S+\nAgents: none\nVelero: none\n$`, out)
	s.installVelero()
	out, _ = s.succeeds("", "version")
	require.Regexp(t, `\nAgents: velero/velero:v1\.18\.3, DaemonSet node-agent: \d+ of \d+ ready, \d+ updated\nVelero: velero/velero:v1\.18\.3\n$`, out)

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
