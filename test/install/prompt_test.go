package install

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnInterruptAtThePromptOfAdoptChangesNothing(t *testing.T) {
	s := newEnv(t)
	s.installVelero()
	before := s.agents()
	adopt := s.start("adopt", "--lateen-image=example.test/lateen:v1")
	adopt.prints("[y/N]")
	adopt.interrupt()
	_, reported, err := adopt.wait()
	require.ErrorContains(t, err, "exit status 1")
	require.Contains(t, reported, "interrupted, nothing changed")
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))
}

func TestAnInterruptAtThePromptOfUninstallRemovesNothing(t *testing.T) {
	s := newEnv(t)
	s.install()
	uninstall := s.start("uninstall")
	uninstall.prints("[y/N]")
	uninstall.interrupt()
	_, reported, err := uninstall.wait()
	require.ErrorContains(t, err, "exit status 1")
	require.Contains(t, reported, "interrupted, nothing removed")
	require.Equal(t, "lateen", s.agents().Labels["app.kubernetes.io/part-of"])
}

func TestForceAdoptsWithoutAQuestion(t *testing.T) {
	s := newEnv(t)
	s.installVelero()
	for _, args := range [][]string{{"adopt", "--lateen-image=example.test/lateen:v1"}, {"adopt", "--undo"}} {
		out, _ := s.succeeds("", append(args, "--force")...)
		require.NotContains(t, out, "[y/N]", args)
	}
}

func TestForceUninstallsWithoutAQuestion(t *testing.T) {
	s := newEnv(t)
	s.install()
	out, _ := s.succeeds("", "uninstall", "--force")
	require.NotContains(t, out, "[y/N]")
	require.Contains(t, out, "DaemonSet node-agent removed\n")
}

func TestPrintedObjectsAreAllOfStandardOutput(t *testing.T) {
	s := newEnv(t)
	s.createNamespace(s.namespace)
	out, progress := s.install("-o=json")
	require.NotEmpty(t, printed(t, out))
	require.Contains(t, progress, "Deployment velero created\n")
}
