package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/testenv"
)

// rejection is a reason for which the API server does not take what agents create.
type rejection struct {
	kind   testenv.Kind
	refuse func(s *env) (lift func()) // nil if it stays
	says   string
}

func rejections() map[string]rejection {
	const snapshots, small = "snapshot.storage.k8s.io", "is 1Ki"
	return map[string]rejection{
		"a limit of containers": {testenv.PodVolumeBackup, limits(corev1.LimitTypeContainer, corev1.ResourceMemory), "maximum memory usage per Container " + small},
		"a limit of claims": {
			testenv.DataDownload, limits(corev1.LimitTypePersistentVolumeClaim, corev1.ResourceStorage), "maximum storage usage per PersistentVolumeClaim " + small,
		},
		"Pod Security baseline":               {testenv.PodVolumeRestore, secures("baseline"), `violates PodSecurity "baseline:latest": hostPath volumes`},
		"Pod Security restricted":             {testenv.DataUpload, secures("restricted"), `violates PodSecurity "restricted:latest"`},
		"a webhook for pods":                  {testenv.PodVolumeBackup, rejects("", "pods"), "not today"},
		"a webhook for pods, for a while":     {testenv.DataDownload, forAWhile("", "pods"), "not today"},
		"a webhook for claims, for a while":   {testenv.DataUpload, forAWhile("", "persistentvolumeclaims"), "not today"},
		"a webhook for snapshots":             {testenv.DataUpload, rejects(snapshots, "volumesnapshots"), "not today"},
		"a webhook for contents, for a while": {testenv.DataUpload, forAWhile(snapshots, "volumesnapshotcontents"), "not today"},
		"a webhook that is down, for a while": {testenv.PodVolumeBackup, isDown, "failed calling webhook"},
		"a policy, for a while":               {testenv.PodVolumeRestore, policy, "movers have to be small"},
	}
}

// rejects is a webhook that lets no such object in.
func rejects(group, resource string) func(s *env) func() {
	return func(s *env) func() {
		s.webhook(denies).validates(group, resource)
		return nil
	}
}

// forAWhile is one which changes its mind.
func forAWhile(group, resource string) func(s *env) func() {
	return func(s *env) func() {
		w := s.webhook(denies)
		w.validates(group, resource)
		return func() { w.answers(allows) }
	}
}

// isDown is one without a server, until somebody removes its configuration.
func isDown(s *env) func() {
	w := s.webhook(denies)
	remove := w.validates("", "pods")
	w.server.Close()
	return remove
}

// limits lets next to nothing of a resource into Velero's namespace.
func limits(kind corev1.LimitType, what corev1.ResourceName) func(s *env) func() {
	return func(s *env) func() {
		s.Helper()
		_, err := s.Kube.CoreV1().LimitRanges(s.Namespace).Create(s.soon(), &corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Name: "small"},
			Spec:       corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: kind, Max: corev1.ResourceList{what: resource.MustParse("1Ki")}}}},
		}, metav1.CreateOptions{})
		require.NoError(s, err)
		return nil
	}
}

// secure sets the Pod Security standard that is enforced in Velero's namespace.
func (e *env) secure(level string) {
	patch := fmt.Sprintf(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":%q}}}`, level)
	_, err := e.Kube.CoreV1().Namespaces().Patch(e.soon(), e.Namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(e, err)
}

// secures enforces a standard for good.
func secures(level string) func(s *env) func() {
	return func(s *env) func() {
		s.Helper()
		s.secure(level)
		s.inForce(func() error {
			_, err := s.Kube.CoreV1().Pods(s.Namespace).Create(s.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "probe"},
				Spec:       corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
		return nil
	}
}

// What is refused is said at once, in an Event, and ends with the time to prepare if it stays so; nothing hangs. What is
// not refused goes on.
func TestATransferThatTheClusterRefusesOnKubernetes(t *testing.T) {
	t.Parallel()
	for name, test := range rejections() {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			s.refusal = true
			s.configure(`{"podResources":{"memoryLimit":"1Gi"}}`)
			around := s.workload(test.kind)
			lift := test.refuse(s)
			r := s.start()
			created := around.create()
			s.says("MoverCreateFailed", test.says)
			if lift != nil {
				lift()
				around.ends(created, testenv.Completed)
				return
			}
			s.expire(test.kind, created)
			ended := around.ends(created, testenv.Failed)
			require.Contains(t, ended.Status.Message, "not prepared within")
			require.Contains(t, ended.Status.Message, test.says)
			r.countsEnd("phase", "Failed", "reason", "prepare_timeout")
			s.says("Failed", test.says)
		})
	}
}

// Movers of data mount no path of the host, which baseline permits.
func TestMoversOfDataKeepWithinPodSecurityBaselineOnKubernetes(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	around := s.workload(testenv.DataUpload)
	secures("baseline")(s)
	s.start()
	around.ends(around.create(), testenv.Completed)
}

// policy is a ValidatingAdmissionPolicy that admits no mover. Its reason is Invalid, the default.
func policy(s *env) (remove func()) {
	admission := s.Kube.AdmissionregistrationV1()
	_, err := admission.ValidatingAdmissionPolicies().Create(s.soon(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ObjectSelector: s.ours(), ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{
				{RuleWithOperations: creating("", "pods", "configmaps")[0]},
			}},
			Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: "movers have to be small"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
	s.removing(admission.ValidatingAdmissionPolicies().Delete)
	_, err = admission.ValidatingAdmissionPolicyBindings().Create(s.soon(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: s.Namespace, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
	s.webhookInForce()
	return s.removing(admission.ValidatingAdmissionPolicyBindings().Delete)
}
