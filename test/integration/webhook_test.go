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
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/testenv"
)

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

// validates has the webhook asked of some resources, until what it returns is called or the test is over.
func (w *webhook) validates(group string, resources ...string) (remove func()) {
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
	return w.removing(configurations.Delete)
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
