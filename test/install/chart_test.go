package install

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/testenv"
)

// helm runs helm in the namespace of the environment.
func (e *env) helm(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(e.Context(), testenv.Patience)
	defer cancel()
	out, err := program(ctx, e.T, "helm", append(args, "--namespace="+e.namespace, "--kubeconfig="+e.kubeconfig)...).CombinedOutput()
	return string(out), err
}

// upgrade installs or upgrades the chart with an image of this tag.
func (e *env) upgrade(tag string, args ...string) {
	out, err := e.helm(append([]string{
		"upgrade", "--install", "lateen", chart, "--set=image.repository=example.test/lateen,image.tag=" + tag,
	}, args...)...)
	require.NoError(e, err, out)
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
