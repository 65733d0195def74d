package status

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/exposer/api"
)

func TestEveryKindIsRead(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, velerov1.AddToScheme(scheme))
	require.NoError(t, velerov2alpha1.AddToScheme(scheme))
	clients, err := NewClients(&rest.Config{Host: "http://127.0.0.1:1"})
	require.NoError(t, err)
	examples := map[string]runtime.Object{}
	for _, source := range clients.transfers("velero") {
		examples[source.resource] = source.example
	}
	require.Len(t, examples, len(api.Kinds()))
	for _, kind := range api.Kinds() {
		object, err := scheme.New(kind.GVK)
		require.NoError(t, err)
		require.IsType(t, object, examples[kind.CRD()], "no source reads %s", kind.CRD())
	}
}
