package api_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	v1crds "github.com/vmware-tanzu/velero/config/crd/v1/crds"
	v2alpha1crds "github.com/vmware-tanzu/velero/config/crd/v2alpha1/crds"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

func TestTheTableHasTheKindsOfVelerosDefinitions(t *testing.T) {
	table := map[string]api.Kind{}
	for _, kind := range api.Kinds() {
		table[kind.CRD()] = kind
	}
	require.Len(t, table, len(api.Kinds()))
	for _, definition := range slices.Concat(v1crds.CRDs, v2alpha1crds.CRDs) {
		kind, listed := table[definition.Name]
		delete(table, definition.Name)
		var served []string
		moves := false // resources that move data have the phases of a transfer
		for _, version := range definition.Spec.Versions {
			if version.Served {
				served = append(served, version.Name)
			}
			for _, phase := range version.Schema.OpenAPIV3Schema.Properties["status"].Properties["phase"].Enum {
				moves = moves || string(phase.Raw) == `"Prepared"`
			}
		}
		require.Equal(t, moves, listed, "%s is in the table if it moves data", definition.Name)
		if !moves {
			continue
		}
		names := definition.Spec.Names
		require.Equal(t, []string{names.Kind, names.Singular, names.Plural}, []string{kind.GVK.Kind, kind.Name, kind.Resource})
		require.Contains(t, served, kind.GVK.Version, definition.Name)
	}
	require.Empty(t, table, "Velero has no definition of these")
}

func TestEveryColumnOfTheTableIsFilledAndNamesAreUnique(t *testing.T) {
	unique := map[string]bool{}
	for _, kind := range api.Kinds() {
		for _, name := range []string{kind.GVK.String(), kind.Name, kind.Resource, kind.ShortName, kind.PodLabel} {
			require.NotEmpty(t, name, kind.GVK)
			require.False(t, unique[name], name)
			unique[name] = true
		}
		require.NotEmpty(t, kind.Finalizer)
	}
}

func TestRunsServer(t *testing.T) {
	for name, test := range map[string]struct {
		command, args []string
		want          bool
	}{
		"as Velero installs it":    {[]string{"/velero"}, []string{"server", "--features="}, true},
		"all in its arguments":     {nil, []string{"velero", "server"}, true},
		"an agent":                 {[]string{"/velero"}, []string{"node-agent", "server"}, false},
		"another program's server": {nil, []string{"server"}, false},
	} {
		require.Equal(t, test.want, api.RunsServer(corev1.Container{Command: test.command, Args: test.args}), name)
	}
	pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "first", Command: []string{"/velero", "server"}}, {Name: "velero"}}}
	require.Equal(t, pod.Containers[:1], api.ServerContainer(pod), "it runs the server, whatever its name is")
}
