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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/testenv"
)

// rejection is a reason for which the API server does not take what agents create.
type rejection struct {
	kind   testenv.Kind
	refuse func(s *env) (lift func()) // nil if it stays
	says   string
}

func rejections() map[string]rejection {
	const snapshots = "snapshot.storage.k8s.io"
	return map[string]rejection{
		"Pod Security baseline":               {testenv.PodVolumeRestore, secures("baseline"), `violates PodSecurity "baseline:latest": hostPath volumes`},
		"Pod Security restricted":             {testenv.DataUpload, secures("restricted"), `violates PodSecurity "restricted:latest"`},
		"a webhook for pods":                  {testenv.PodVolumeBackup, rejects("", "pods"), "not today"},
		"a webhook for pods, for a while":     {testenv.DataDownload, forAWhile("", "pods"), "not today"},
		"a webhook for claims, for a while":   {testenv.DataUpload, forAWhile("", "persistentvolumeclaims"), "not today"},
		"a webhook for snapshots":             {testenv.DataUpload, rejects(snapshots, "volumesnapshots"), "not today"},
		"a webhook for contents, for a while": {testenv.DataUpload, forAWhile(snapshots, "volumesnapshotcontents"), "not today"},
		"a policy, for a while":               {testenv.PodVolumeRestore, policy, "movers have to be small"},
		"a quota, for a while":                {testenv.DataDownload, quota, "exceeded quota: none"},
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
	require.Zero(t, s.moversMade(created))
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

// quota lets no pod into Velero's namespace.
func quota(s *env) (lift func()) {
	s.Helper()
	return s.limit(corev1.ResourcePods)
}

// limit lets none of a resource into Velero's namespace.
func (e *env) limit(what corev1.ResourceName) (lift func()) {
	quotas := e.Kube.CoreV1().ResourceQuotas(e.Namespace)
	_, err := quotas.Create(e.soon(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{what: resource.MustParse("0")}},
	}, metav1.CreateOptions{})
	require.NoError(e, err)
	return func() { require.NoError(e, quotas.Delete(e.soon(), "none", metav1.DeleteOptions{})) }
}

// webhook is an admission webhook for what the agent of an environment's node creates.
type webhook struct {
	*env
	server  *httptest.Server
	selects *metav1.LabelSelector // of its objects
	review  atomic.Pointer[func() *admissionv1.AdmissionResponse]
}

// denies is the answer of a webhook that lets nothing in; it gives no status code, which the API server makes a 400.
func denies() *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "not today"}}
}

// allows is that of one which lets all in as it is.
func allows() *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true}
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
	w := &webhook{env: e, selects: e.ours()}
	w.answers(review)
	w.server = httptest.NewTLSServer(w)
	e.Cleanup(w.server.Close)
	return w
}

// ofJobs has it asked of maintenance jobs instead.
func (w *webhook) ofJobs() *webhook {
	w.selects = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: api.LabelRepository, Operator: metav1.LabelSelectorOpExists},
	}}
	return w
}

// within selects the environment's namespace. Others share the control plane.
func (e *env) within() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: e.Namespace}}
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

// client is how the API server gets there.
func (w *webhook) client() admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{
		URL: &w.server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw}),
	}
}

// ours selects what the agent of its node creates.
func (e *env) ours() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{api.LabelExposer: objects.LabelValue(e.node.Name())}}
}

// creating are the rules for new objects of some resources.
func creating(group string, resources ...string) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: resources},
	}}
}

// validates has the webhook asked of some resources until the test is over.
func (w *webhook) validates(group string, resources ...string) {
	configurations := w.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := configurations.Create(w.soon(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "policy.example.com", ClientConfig: w.client(), ObjectSelector: w.selects, NamespaceSelector: w.within(),
			Rules:       append(creating(group, resources...), creating("", "configmaps")...),
			SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	require.NoError(w, err)
	w.webhookInForce()
	w.removing(configurations.Delete)
}

// mutates has the webhook asked of some resources, until the test is over.
func (w *webhook) mutates(group, resource string) {
	configurations := w.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err := configurations.Create(w.soon(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "injector.example.com", ClientConfig: w.client(), ObjectSelector: w.selects, NamespaceSelector: w.within(),
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
	labels := e.ours().MatchLabels
	labels[api.LabelRepository] = "probe"
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe", Labels: labels}}
	e.inForce(func() error {
		_, err := e.Kube.CoreV1().ConfigMaps(e.Namespace).Create(e.Context(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
}

// inForce tries something until the API server refuses it.
func (e *env) inForce(try func() error) { require.NoError(e, untilRefused(e.soon(), try)) }

// untilRefused returns nil once the API server rejects the attempt: no other signal shows that a rule is in force.
func untilRefused(ctx context.Context, try func() error) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try()
		if status := apierrors.APIStatus(nil); err != nil {
			if errors.As(err, &status) {
				return nil
			}
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("nothing is refused: %w", ctx.Err())
		}
	}
}
