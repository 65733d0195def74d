package diagnose

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/exposer/api"
)

func TestEveryKindIsShown(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, velerov1.AddToScheme(scheme))
	require.NoError(t, velerov2alpha1.AddToScheme(scheme))
	for _, kind := range api.Kinds() {
		object, err := scheme.New(kind.GVK)
		require.NoError(t, err)
		one := asTransfer(object)
		require.NotNil(t, one, "no transfer is read from a %s", kind.GVK.Kind)
		require.Equal(t, kind.GVK.Kind, one.kind)
		require.Equal(t, kind.ShortName, view.ShortKind(one.kind))
		of, err := ParseReference(kind.Resource + "/x")
		require.NoError(t, err)
		require.Equal(t, Reference{Kind: kind.GVK.Kind, Name: "x"}, of)
	}
}
