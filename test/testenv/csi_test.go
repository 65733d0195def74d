package testenv_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/testenv"
)

func TestSnapshotsAreServedOnceInstalled(t *testing.T) {
	ctx := deadline(t)
	require.NoError(t, testenv.InstallSnapshotCRDs(ctx, plane.Admin()))
	require.NoError(t, testenv.InstallSnapshotCRDs(ctx, plane.Admin()), "a second time changes nothing")
	w := newWorld(ctx, t, testenv.Options{})
	found, err := w.Kube.Discovery().ServerResourcesForGroupVersion("snapshot.storage.k8s.io/v1")
	require.NoError(t, err)
	var names []string
	for _, resource := range found.APIResources {
		names = append(names, resource.Name)
	}
	require.Subset(t, names, []string{"volumesnapshots", "volumesnapshotcontents", "volumesnapshotcontents/status", "volumesnapshotclasses"})
}
