package testenv_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestDefinitionsOfABinaryAreThoseOfItsModule(t *testing.T) {
	ctx := deadline(t)
	binary, err := cluster.FindBinary("velero")
	require.NoError(t, err)
	printed, err := testenv.PrintedCRDs(ctx, binary)
	require.NoError(t, err)
	own := testenv.CRDs()
	require.Len(t, printed, len(own))
	for i, crd := range own {
		require.Equal(t, crd.Name, printed[i].Name)
		require.Equal(t, crd.Spec, printed[i].Spec)
	}
	require.NoError(t, testenv.InstallCRDsOf(ctx, plane.Admin(), binary), "what is there stays")
	require.ErrorContains(t, testenv.InstallCRDsOf(ctx, plane.Admin(), "/no/such/velero"), "/no/such/velero install")
}
