package install

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// helm runs helm in the namespace of the environment.
func (s *env) helm(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(s.Context(), testenv.Patience)
	defer cancel()
	out, err := program(ctx, s.T, "helm", append(args, "--namespace="+s.namespace, "--kubeconfig="+s.kubeconfig)...).CombinedOutput()
	return string(out), err
}

// upgrade installs or upgrades the chart with an image of this tag.
func (s *env) upgrade(tag string, args ...string) {
	out, err := s.helm(append([]string{
		"upgrade", "--install", "lateen", chart, "--set=image.repository=example.test/lateen,image.tag=" + tag,
	}, args...)...)
	require.NoError(s, err, out)
}

func TestTheChartIsInstalledUpgradedRolledBackAndRemoved(t *testing.T) {
	s := newEnv(t)
	s.install("--use-node-agent=false")
	image := func() string { return s.agents().Spec.Template.Spec.Containers[0].Image }
	objects := deploy.Objects(deploy.Options{Namespace: s.namespace})
	versions := func() map[string]string {
		all := map[string]string{}
		for _, object := range objects {
			manifest, err := deploy.Manifest(object)
			require.NoError(t, err)
			found, err := s.found(*manifest)
			require.NoError(t, err)
			all[found.GetKind()] = version(t, found)
		}
		return all
	}
	s.upgrade("v1")
	first, agents := versions(), asJSON(t, s.agents())
	s.upgrade("v1")
	require.Equal(t, first, versions(), "the second installation changed something")

	s.upgrade("v2", "--set=nodeAgent.extraArgs={--workers=4}")
	require.Equal(t, "example.test/lateen:v2", image())
	require.Contains(t, s.agents().Spec.Template.Spec.Containers[0].Args, "--workers=4")
	out, err := s.helm("rollback", "lateen", "1")
	require.NoError(t, err, out)
	require.Equal(t, agents, asJSON(t, s.agents()), "the rollback left something of the upgrade")

	out, err = s.helm("uninstall", "lateen", "--wait")
	require.NoError(t, err, out)
	for _, object := range objects {
		manifest, err := deploy.Manifest(object)
		require.NoError(t, err)
		_, err = s.found(*manifest)
		require.True(t, apierrors.IsNotFound(err), "%s is left: %v", manifest.GetKind(), err)
	}
}

func TestTheChartDoesNotReplaceTheAgentsOfVelero(t *testing.T) {
	s := newEnv(t)
	s.installVelero()
	before := s.agents()
	out, err := s.helm("install", "lateen", chart, "--set=image.repository=example.test/lateen")
	require.Error(t, err)
	require.Contains(t, out, `DaemonSet "node-agent" in namespace "`+s.namespace+`" exists and cannot be imported`)
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))
}

// The mover of a backup goes on while an upgrade, and then a rollback, replaces the agent of its node.
func TestAnUpgradeOfTheChartDisturbsNoMover(t *testing.T) {
	s := newEnv(t)
	name, root := "node-"+s.namespace, filepath.Join(t.TempDir(), "kubelet")
	finish := make(chan struct{})
	mover, err := node.NewStandIn(plane.Admin(), time.Hour)
	require.NoError(t, err)
	mover.Finish = finish
	s.node(name, root, mover)
	s.install("--use-node-agent=false")
	w, err := testenv.Open(soon(t), plane.Admin(), s.namespace)
	require.NoError(t, err)
	agent, stop := &corev1.Pod{}, func() {}
	replace := func(tag string) { // the agent of the node by one of another image
		stop()
		require.NoError(t, w.WaitPodGone(soon(t), s.namespace, agent.Name))
		var err error
		agent, err = w.NodeAgentPod(soon(t), name, testenv.Ready)
		require.NoError(t, err)
		require.Equal(t, "example.test/lateen:"+tag, agent.Spec.Containers[0].Image)
		stop = s.startAgent(agent)
	}
	kubelet := "--set=nodeAgent.podVolumePath=" + filepath.Join(root, "pods")
	s.upgrade("v1", kubelet)
	replace("v1")
	transfer, moving := s.backUp(w, name)

	s.upgrade("v2", kubelet)
	replace("v2")
	out, err := s.helm("rollback", "lateen", "1")
	require.NoError(t, err, out)
	replace("v1")
	after, err := s.kube.CoreV1().Pods(s.namespace).Get(soon(t), moving.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, moving.UID, after.UID)
	close(finish)
	ended, err := w.Transfers(testenv.PodVolumeBackup).Wait(soon(t), transfer, testenv.Settled)
	require.NoError(t, err)
	require.Equal(t, testenv.Completed, ended.Status.Phase, ended.Status.Message)
}
