package deploy_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/deploy"
)

func TestThePoliciesAllowWhatVeleroHas(t *testing.T) {
	secret := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	server := corev1.PodSpec{
		ServiceAccountName: "velero-server",
		Containers: []corev1.Container{
			{Name: "proxy", Image: "example.test/proxy:v1", EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: secret("proxy")}}}},
			{Name: "velero", Image: "mirror.test:5000/velero:v1.18.3@sha256:0123", Command: []string{"/velero"}, Args: []string{"server"}, Env: []corev1.EnvVar{
				{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: secret("key")}}},
			}},
		},
		Volumes: []corev1.Volume{
			{Name: "cloud", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cloud-credentials"}}},
			{Name: "vault", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
				Driver: "secrets-store.csi.k8s.io", NodePublishSecretRef: &corev1.LocalObjectReference{Name: "vault"},
			}}},
			{Name: "all", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{Secret: &corev1.SecretProjection{LocalObjectReference: secret("projected")}},
			}}}},
		},
	}
	agents := corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "cloud", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cloud-credentials"}}},
		{Name: "own", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "agents"}}},
	}}
	require.Equal(t, deploy.Inherited{
		Image: "mirror.test:5000/velero", Account: "velero-server",
		Secrets: []string{"agents", "cloud-credentials", "key", "projected", "proxy", "vault"}, CSIDrivers: []string{"secrets-store.csi.k8s.io"},
	}, deploy.InheritedFrom(server, agents))
	require.Equal(t, deploy.Inherited{Account: "default"}, deploy.InheritedFrom(corev1.PodSpec{}, corev1.PodSpec{}))
}

// Policies with a parameter fail after others were deleted, until the API server restarts (kubernetes/kubernetes#130887).
func TestNoPolicyHasAParameter(t *testing.T) {
	for _, object := range deploy.PodPolicies(deploy.PodPolicy{Namespace: "velero"}) {
		if policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy); ok {
			require.Nil(t, policy.Spec.ParamKind, policy.Name)
		}
	}
}
