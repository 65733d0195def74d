package uninstall

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/api"
)

func TestUninstallReleasesTheFinalizersOfEveryKind(t *testing.T) {
	agents := map[string]bool{}
	for _, each := range allFinalized() {
		agents[each.String()] = each.name == api.DaemonSetName
	}
	for _, kind := range api.Kinds() {
		require.True(t, agents[kind.GVR().String()], kind.Name)
	}
}
