package integration

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/testenv"
)

// forAWhile is a webhook that lets no such object in until it changes its mind.
func forAWhile(group, resource string) func(s *env) func() {
	return func(s *env) func() {
		w := s.webhook(denies)
		w.mutates(group, resource)
		return func() {
			w.answers(func() *admissionv1.AdmissionResponse { return &admissionv1.AdmissionResponse{Allowed: true} })
		}
	}
}

// secures enforces a Pod Security standard in Velero's namespace for good.
func secures(level string) func(s *env) func() {
	return func(s *env) func() {
		s.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":%q}}}`, level)
		_, err := s.Kube.CoreV1().Namespaces().Patch(s.soon(), s.Namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(s, err)
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
	for name, test := range map[string]struct {
		kind   testenv.Kind
		refuse func(s *env) (lift func()) // nil if it stays
		says   string
	}{
		"Pod Security baseline":           {testenv.PodVolumeRestore, secures("baseline"), `violates PodSecurity "baseline:latest": hostPath volumes`},
		"Pod Security restricted":         {testenv.DataUpload, secures("restricted"), `violates PodSecurity "restricted:latest"`},
		"a webhook for pods, for a while": {testenv.PodVolumeBackup, forAWhile("", "pods"), "not today"},
		"a policy, for a while":           {testenv.PodVolumeRestore, policy, "movers have to be small"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			around := s.workload(test.kind)
			lift := test.refuse(s)
			s.start()
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

// The definitions of another Velero may have a field that this build cannot read. Only the API server records that it is set.
func TestAFieldThatIsNotKnownIsRefusedOnKubernetes(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	around := s.workload(testenv.PodVolumeBackup)
	created := around.create()
	client, err := dynamic.NewForConfig(s.Plane.Admin())
	require.NoError(t, err)
	field := `[{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/zeal", "value": {"type": "string", "enum": ["great"]}}]`
	definitions := client.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	_, err = definitions.Patch(s.soon(), "podvolumebackups.velero.io", types.JSONPatchType, []byte(field), metav1.PatchOptions{})
	require.NoError(t, err)
	backups := client.Resource(api.PodVolumeBackup().GVR()).Namespace(s.Namespace)
	set := func(zeal string) error {
		_, err := backups.Patch(s.soon(), created, types.MergePatchType, []byte(`{"spec":{"zeal":"`+zeal+`"}}`), metav1.PatchOptions{})
		return err
	}
	s.inForce(func() error { return set("none") })
	require.NoError(t, set("great"))
	s.start()
	ended := around.ends(created, testenv.Failed)
	require.Contains(t, ended.Status.Message, "spec.zeal is not known to this version of Lateen")
	made, err := s.MoversMade(s.soon(), created)
	require.NoError(t, err)
	require.Zero(t, made)
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

// webhook is an admission webhook for what the agent of an environment's node creates.
type webhook struct {
	*env
	server *httptest.Server
	review atomic.Pointer[func() *admissionv1.AdmissionResponse]
}

// denies is the answer of a webhook that lets nothing in; it gives no status code, which the API server makes a 400.
func denies() *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "not today"}}
}

// patches is that of one which changes every pod.
func patches(operations ...map[string]any) func() *admissionv1.AdmissionResponse {
	return func() *admissionv1.AdmissionResponse {
		patch, err := json.Marshal(operations)
		if err != nil {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: err.Error()}}
		}
		return &admissionv1.AdmissionResponse{Allowed: true, Patch: patch, PatchType: new(admissionv1.PatchTypeJSONPatch)}
	}
}

// webhook starts a server.
func (e *env) webhook(review func() *admissionv1.AdmissionResponse) *webhook {
	w := &webhook{env: e}
	w.answers(review)
	w.server = httptest.NewTLSServer(w)
	e.Cleanup(w.server.Close)
	return w
}

// answers changes what it does.
func (w *webhook) answers(review func() *admissionv1.AdmissionResponse) {
	w.review.Store(&review)
}

func (w *webhook) ServeHTTP(to http.ResponseWriter, request *http.Request) {
	review := &admissionv1.AdmissionReview{}
	if err := json.NewDecoder(request.Body).Decode(review); err != nil {
		http.Error(to, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = (*w.review.Load())()
	review.Response.UID = review.Request.UID
	if err := json.NewEncoder(to).Encode(review); err != nil {
		http.Error(to, err.Error(), http.StatusInternalServerError)
	}
}

// ours selects what the agent of its node creates.
func (e *env) ours() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{api.LabelExposer: api.LabelValue(e.node.Name())}}
}

// creating are the rules for new objects of some resources.
func creating(group string, resources ...string) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: resources},
	}}
}

// mutates has the webhook asked of some resources, until the test is over.
func (w *webhook) mutates(group, resource string) {
	configurations := w.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err := configurations.Create(w.soon(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "injector.example.com", ObjectSelector: w.ours(), // others share the control plane
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.Namespace}},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &w.server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw}),
			},
			Rules:       append(creating(group, resource), creating("", "configmaps")...),
			SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	require.NoError(w, err)
	review := *w.review.Load()
	w.answers(denies)
	w.webhookInForce()
	w.answers(review)
	w.removing(configurations.Delete)
}

// removing deletes a configuration of the environment when it is called, and at the end of the test.
func (e *env) removing(remove func(context.Context, string, metav1.DeleteOptions) error) func() {
	once := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.Context()), testenv.Patience)
		defer cancel()
		require.NoError(e, remove(ctx, e.Namespace, metav1.DeleteOptions{}))
	})
	e.Cleanup(once)
	return once
}

// webhookInForce returns when the API server calls the webhook, which it learns from a watch.
func (e *env) webhookInForce() {
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe", Labels: e.ours().MatchLabels}}
	e.inForce(func() error {
		_, err := e.Kube.CoreV1().ConfigMaps(e.Namespace).Create(e.Context(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
}

// inForce tries something until the API server refuses it: no other signal shows that a rule is in force.
func (e *env) inForce(try func() error) {
	require.Eventually(e, func() bool {
		var status apierrors.APIStatus
		return errors.As(try(), &status)
	}, testenv.Patience, 20*time.Millisecond, "nothing is refused")
}
