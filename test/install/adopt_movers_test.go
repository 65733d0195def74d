package install

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lateen-project/lateen/deploy"
)

// restrictions are the objects of --restrict-movers --mover-secrets=bucket --pod-policy=privileged.
func (s *env) restrictions() (all []*unstructured.Unstructured) {
	wanted := deploy.MoverAccess(s.namespace, deploy.Movers{Account: true, Secrets: []string{"bucket"}})
	velero := deploy.Inherited{Image: "velero/velero", Account: "velero", Secrets: []string{"cloud-credentials"}}
	wanted = append(wanted, deploy.PodPolicies(deploy.PodPolicyOf(s.namespace, "/data/kubelet/pods", deploy.PodPolicyPrivileged, deploy.Movers{Account: true}, velero))...)
	for _, object := range wanted {
		manifest, err := deploy.Manifest(object)
		require.NoError(s, err)
		all = append(all, manifest)
	}
	return all
}

// requireGone reports which objects an undo has left.
func (s *env) requireGone(objects []*unstructured.Unstructured) {
	for _, object := range objects {
		_, err := s.found(*object)
		require.True(s, apierrors.IsNotFound(err), "%s %s is left: %v", object.GetKind(), object.GetName(), err)
	}
}

func TestAnAdoptionRestrictsMovers(t *testing.T) {
	s := newEnv(t)
	s.installVelero("--kubelet-root-dir=/data/kubelet")
	before, restrictions := s.agents(), s.restrictions()
	switches := []string{"--lateen-image=example.test/lateen:v1", "--restrict-movers", "--mover-secrets=bucket", "--pod-policy=privileged"}

	out, _ := s.succeeds("", append([]string{"adopt", "--dry-run"}, switches...)...)
	require.Contains(t, out, "\n+     - --mover-service-account=lateen-mover\n")
	for _, object := range restrictions {
		require.Contains(t, out, "\n"+object.GetKind()+" "+object.GetName()+" is applied.\n")
	}
	s.requireGone(restrictions)
	out, _ = s.succeeds("", append([]string{"adopt", "--dry-run", "-o=json"}, switches...)...)
	var names []string
	for _, object := range printed(t, out) {
		names = append(names, object.GetKind()+" "+object.GetName())
	}

	s.adopt(switches...)
	require.Contains(t, s.agents().Spec.Template.Spec.Containers[0].Args, "--mover-service-account=lateen-mover")
	for _, want := range restrictions {
		require.Contains(t, names, want.GetKind()+" "+want.GetName())
		have, err := s.found(*want)
		require.NoError(t, err)
		switch want.GetKind() {
		case "Role":
			require.Equal(t, want.Object["rules"], have.Object["rules"])
		case "ValidatingAdmissionPolicy":
			for _, field := range []string{"variables", "validations"} {
				require.Equal(t, want.Object["spec"].(map[string]any)[field], have.Object["spec"].(map[string]any)[field], want.GetName())
			}
		}
	}

	s.adopt("--undo")
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))
	s.requireGone(restrictions)
}

// A mover whose ServiceAccount is deleted loses its token, and cannot write its results.
func TestAnUndoKeepsTheAccountOfRunningMovers(t *testing.T) {
	s := newEnv(t)
	s.installVelero()
	s.adopt("--lateen-image=example.test/lateen:v1", "--restrict-movers")
	mover := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mover"}}
	mover.Spec.ServiceAccountName, mover.Spec.Containers = deploy.MoverAccountName, []corev1.Container{{Name: "mover", Image: "velero/velero:v1.18.3"}}
	_, err := s.kube.CoreV1().Pods(s.namespace).Create(soon(t), mover, metav1.CreateOptions{})
	require.NoError(t, err)
	_, reported := s.succeeds("", "adopt", "--undo", "--force")
	require.Contains(t, reported, "Warning: ServiceAccount, Role and RoleBinding lateen-mover remain, because movers run with them")
	for _, object := range deploy.MoverAccess(s.namespace, deploy.Movers{Account: true}) {
		manifest, err := deploy.Manifest(object)
		require.NoError(t, err)
		_, err = s.found(*manifest)
		require.NoError(t, err)
	}
	_, err = s.kube.CoreV1().ServiceAccounts(s.namespace).Get(soon(t), deploy.ServiceAccountName, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "the rest is gone: %v", err)
}

func TestSwitchesForMoversThatContradict(t *testing.T) {
	s := newEnv(t)
	for says, args := range map[string][]string{
		"add --restrict-movers":                 {"--lateen-image=example.test/lateen:v1", "--mover-secrets=bucket"},
		"use restricted or privileged":          {"--lateen-image=example.test/lateen:v1", "--pod-policy=all"},
		"remove --restrict-movers, --mover-sec": {"--undo", "--restrict-movers"},
	} {
		_, reported := s.fails("", append([]string{"adopt"}, args...)...)
		require.Contains(t, reported, says)
	}
	s.installVelero()
	require.NoError(t, s.kube.AppsV1().Deployments(s.namespace).Delete(soon(t), deploy.VeleroDeployment, metav1.DeleteOptions{}))
	_, reported := s.fails("", "adopt", "--lateen-image=example.test/lateen:v1", "--pod-policy=restricted")
	require.Contains(t, reported, "find Velero's server for --pod-policy")
}
