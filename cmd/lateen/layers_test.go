package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/lateen-project/lateen/"

// dependencies lists all packages that a package of this module depends on.
func dependencies(t *testing.T, of string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+of).Output()
	require.NoError(t, err)
	return strings.Fields(string(out))
}

func TestDecisionsArePure(t *testing.T) {
	for _, of := range []string{"exposer/api", "exposer/objects", "exposer/handover", "exposer/rebind", "reconcile/transfer", "reconcile/maintenance"} {
		t.Run(of, func(t *testing.T) {
			for _, dependency := range dependencies(t, of) {
				require.NotRegexp(t, `^k8s\.io/client-go(/|$)|^github\.com/prometheus/|^k8s\.io/utils/clock`, dependency)
			}
		})
	}
}

func TestTheProductIsBuiltWithoutFrameworks(t *testing.T) {
	require.NotRegexp(t, `controller-runtime|sirupsen/logrus|k8s\.io/kubernetes`, strings.Join(dependencies(t, "cmd/lateen"), "\n"))
}
