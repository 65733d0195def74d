package cluster

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStartSaysWhatIsWrong(t *testing.T) {
	idle := filepath.Join(t.TempDir(), "idle")
	require.NoError(t, os.WriteFile(idle, []byte("#!/bin/sh\necho idling; exec sleep 60\n"), 0o700))
	tests := map[string]struct {
		options Options
		says    []string
	}{
		"a flag that the API server does not know ends Start at once": {
			Options{APIServerArgs: []string{"--no-such-flag"}},
			[]string{"kube-apiserver ended by itself", "unknown flag: --no-such-flag"},
		},
		"a binary that is not there is named, with the remedy": {
			Options{Binary: "/nowhere/controlplane"},
			[]string{"/nowhere/controlplane", "make bin/controlplane"},
		},
		"a program that never gets ready is given up, and its log is told": {
			Options{Binary: idle, StartTimeout: 3 * time.Second},
			[]string{"wait for /readyz", "deadline exceeded", "kube-apiserver says:\nidling"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			_, err := Start(t.Context(), test.options)
			for _, says := range test.says {
				require.ErrorContains(t, err, says)
			}
			left, err := os.ReadDir(os.Getenv("TMPDIR"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestStopSaysWhatEndedBefore(t *testing.T) {
	script := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho out of luck; exit 3\n"), 0o700))
	p, err := startProcess(script, nil, t.TempDir())
	require.NoError(t, err)
	select {
	case <-p.ended:
	case <-deadline(t).Done():
		t.Fatal("the program does not end")
	}
	c := &Cluster{processes: []*process{p}}
	require.ErrorContains(t, c.Stop(), "program ended by itself (exit status 3); it says:\nout of luck")
}

func TestFindBinaryUsesTheGivenDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("LATEEN_BIN", dir)
	_, err := FindBinary("tool")
	require.ErrorContains(t, err, "make bin/tool builds it")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tool"), nil, 0o700))
	found, err := FindBinary("tool")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "tool"), found)
}

// installBackups creates a resource backups of group velero.io that accepts any spec.
func installBackups(ctx context.Context, t *testing.T) {
	t.Helper()
	client, err := apiextensions.NewForConfig(shared.Admin())
	require.NoError(t, err)
	anything := true
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	_, err = crds.Create(ctx, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "backups.velero.io"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "velero.io", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "backups", Kind: "Backup"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: &anything,
				}},
			}},
		},
	}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) { // It exists if the tests run more than once.
		require.NoError(t, err)
	}
	watcher, err := crds.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=backups.velero.io"})
	require.NoError(t, err)
	defer watcher.Stop()
	for {
		select {
		case event := <-watcher.ResultChan():
			crd, ok := event.Object.(*apiextensionsv1.CustomResourceDefinition)
			require.True(t, ok, "%T", event.Object)
			for _, condition := range crd.Status.Conditions {
				if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
					return
				}
			}
		case <-ctx.Done():
			t.Fatal("the resource backups is not established")
		}
	}
}
