package install

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestUninstallingRemovesAllThatWasInstalled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience) // a control plane of its own: definitions are everybody's
	defer cancel()
	own, err := cluster.Start(ctx, cluster.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Stop()) })
	s := envOf(t, own)
	options := []string{"--restrict-movers", "--pod-policy=restricted"}
	s.install(options...)
	objects := printed(t, first(s.install(append(options, "--dry-run", "-o=json")...)))
	definitions := s.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	newer, err := definitions.Patch(soon(t), "datauploads.velero.io", types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/novel","value":{"type":"string"}}]`), metav1.PatchOptions{})
	require.NoError(t, err)
	out, _ := s.install(append(options, "--apply")...)
	require.Contains(t, out, "CustomResourceDefinition datauploads.velero.io is of a newer Velero (it has v2alpha1.spec.novel), unchanged\n")
	kept, err := definitions.Get(soon(t), newer.GetName(), metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, newer.Object["spec"], kept.Object["spec"])

	w, err := testenv.Open(soon(t), own.Admin(), s.namespace)
	require.NoError(t, err)
	_, err = w.Backup(soon(t), "nightly")
	require.NoError(t, err)

	out, reported := s.fails("no\n", "uninstall")
	require.Contains(t, reported, "nothing removed")
	require.Contains(t, out, "Deployment velero\n")
	for _, object := range objects {
		_, err := s.found(object)
		require.NoError(t, err)
	}

	s.succeeds("y\n", "uninstall")
	for _, object := range objects {
		_, err := s.found(object)
		require.True(t, apierrors.IsNotFound(err), "%s %s is left: %v", object.GetKind(), object.GetName(), err)
	}
	_, reported = s.fails("y\n", "uninstall")
	require.Contains(t, reported, "no object has label")
}

func TestUninstallingLeavesWhatWasThereBefore(t *testing.T) {
	s := newEnv(t)
	s.createNamespace(s.namespace)
	_, err := s.kube.CoreV1().ServiceAccounts(s.namespace).Create(soon(t), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "velero"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.install("--apply")
	s.install("--apply")
	s.succeeds("", "uninstall", "--force")
	for _, object := range printed(t, first(s.install("--dry-run", "-o=json"))) {
		_, err := s.found(object)
		switch kind, name := object.GetKind(), object.GetName(); {
		case kind == "CustomResourceDefinition": // whoever installed first has made them
		case kind == "Namespace", kind == "ServiceAccount" && name == "velero":
			require.NoError(t, err, "%s %s was there before", kind, name)
		default:
			require.True(t, apierrors.IsNotFound(err), "%s %s is left: %v", kind, name, err)
		}
	}
}
