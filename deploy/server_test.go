package deploy_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	v1crds "github.com/vmware-tanzu/velero/config/crd/v1/crds"
	v2alpha1crds "github.com/vmware-tanzu/velero/config/crd/v2alpha1/crds"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/deploy"
)

func serverPod(t *testing.T, v deploy.Velero) corev1.PodSpec {
	t.Helper()
	objects := deploy.Server(v)
	server, ok := objects[len(objects)-1].(*appsv1.Deployment)
	require.True(t, ok)
	return server.Spec.Template.Spec
}

func TestPluginsAreNamedAfterTheirImages(t *testing.T) {
	long := strings.Repeat("x", 70)
	tests := map[string]struct {
		images, names []string
	}{
		"without the tag":                      {images: []string{"velero/velero-plugin-for-aws:v1.14.0"}, names: []string{"velero-velero-plugin-for-aws"}},
		"without the registry":                 {images: []string{"registry.example:5000/a/b_c.d:v1"}, names: []string{"a-b-c-d"}},
		"without the digest":                   {images: []string{"a/b:v1@sha256:0123"}, names: []string{"a-b"}},
		"no longer than a label may be":        {images: []string{long}, names: []string{long[:63]}},
		"with a number where one has the name": {images: []string{"a/b:v1", "a/b:v2", long, long}, names: []string{"a-b", "a-b-2", long[:63], long[:61] + "-2"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var names []string
			for _, plugin := range serverPod(t, deploy.Velero{Plugins: test.images}).InitContainers {
				names = append(names, plugin.Name)
			}
			require.Equal(t, test.names, names)
		})
	}
}

func TestMutableImageTagsArePulledAlways(t *testing.T) {
	tests := map[string]corev1.PullPolicy{
		"velero/velero":                        corev1.PullAlways,
		"velero/velero:latest":                 corev1.PullAlways,
		"registry.example:5000/velero":         corev1.PullAlways,
		"velero/velero:v1.18.3":                corev1.PullIfNotPresent,
		"registry.example:5000/velero:v1.18.3": corev1.PullIfNotPresent,
		"velero/velero@sha256:0123":            corev1.PullIfNotPresent,
	}
	for image, want := range tests {
		t.Run(image, func(t *testing.T) {
			require.Equal(t, want, serverPod(t, deploy.Velero{Image: image}).Containers[0].ImagePullPolicy)
		})
	}
}

// The definitions come from the Velero module of the build, and the server must have the same version.
func TestTheServerIsOfTheVersionOfTheDefinitions(t *testing.T) {
	module, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	_, version, found := strings.Cut(deploy.VeleroImage, ":")
	require.True(t, found)
	require.Contains(t, string(module), "\tgithub.com/vmware-tanzu/velero "+version+"\n")
	require.Len(t, deploy.Definitions(), len(v1crds.CRDs)+len(v2alpha1crds.CRDs), "definitions of both versions of the API")
}
