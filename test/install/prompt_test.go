package install

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		out, reported, err := s.run("", append(args, "--force")...)
		require.NoError(t, err, reported)
		require.NotContains(t, out, "[y/N]", args)
	}
}

func TestForceUninstallsWithoutAQuestion(t *testing.T) {
	s := newEnv(t)
	s.install()
	out, reported, err := s.run("", "uninstall", "--force")
	require.NoError(t, err, reported)
	require.NotContains(t, out, "[y/N]")
	require.Contains(t, out, "DaemonSet node-agent removed\n")
}

func TestPrintedObjectsAreAllOfStandardOutput(t *testing.T) {
	s := newEnv(t)
	_, err := s.kube.CoreV1().Namespaces().Create(soon(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}, metav1.CreateOptions{})
	require.NoError(t, err)
	out, progress := s.install("-o=json")
	require.NotEmpty(t, printed(t, out))
	require.Contains(t, progress, "Deployment velero created\n")
}
