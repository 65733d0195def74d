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

func TestLayers(t *testing.T) {
	layers := map[string][]string{ // own packages that each package may depend on, directly or not, besides exposer/api and exposer/truncate
		"exposer/api":           {},
		"exposer/truncate":      {},
		"metrics":               {},
		"informers":             {},
		"exposer/objects":       {},
		"exposer/priority":      {},
		"exposer/access":        {},
		"deploy":                {},
		"exposer/handover":      {"exposer/objects"},
		"exposer/rebind":        {"exposer/objects"},
		"exposer":               {"exposer/access", "exposer/objects", "exposer/handover", "exposer/rebind", "exposer/priority"},
		"reconcile/capacity":    {},
		"reconcile/writes":      {},
		"reconcile/leader":      {"exposer/objects"},
		"reconcile/transfer":    {"exposer/objects"},
		"reconcile/maintenance": {"exposer/objects"},
		"reconcile/orphans":     {"exposer/objects", "metrics"},
		"reconcile/finished":    {},
		"reconcile": {"exposer", "exposer/access", "exposer/objects", "exposer/handover", "exposer/rebind", "exposer/priority",
			"reconcile/capacity", "reconcile/transfer", "reconcile/writes", "metrics"},
		"reconcile/repository": {"exposer", "exposer/access", "exposer/objects", "exposer/handover", "exposer/rebind", "exposer/priority",
			"reconcile", "reconcile/capacity", "reconcile/maintenance", "reconcile/transfer", "reconcile/writes", "metrics"},
		"cmd/lateen/cluster":     {"deploy"},
		"cmd/lateen/status/view": {"cmd/lateen/config", "cmd/lateen/configmap", "exposer/access", "exposer/objects", "exposer/priority", "reconcile/transfer"},
		"cmd/lateen/configmap":   {"exposer/objects", "exposer/priority"},
		"cmd/lateen/config":      {"cmd/lateen/configmap", "exposer/access", "exposer/objects", "exposer/priority", "reconcile/transfer"},
	}
	for of, allowed := range layers {
		t.Run(of, func(t *testing.T) {
			for _, dependency := range dependencies(t, of) {
				if ours, ok := strings.CutPrefix(dependency, module); ok && ours != of && ours != "exposer/api" && ours != "exposer/truncate" {
					require.Contains(t, allowed, ours)
				}
			}
		})
	}
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
