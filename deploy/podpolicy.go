package deploy

import (
	"fmt"
	"path"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/exposer/api"
)

// PodPolicy are the parts of the admission policies that depend on the installation. All are texts, so that the chart
// can fill them in.
type PodPolicy struct {
	Namespace  string
	Deployment string // of Velero's server, with the image of movers and the Secrets that they may have
	PodsDir    string // the kubelet's pods directory
	Account    string // CEL: the ServiceAccount of movers and jobs
	Privileged string // CEL: whether movers of pod volumes may be privileged
}

// ServerAccount is PodPolicy.Account for movers that run as Velero's server does.
const ServerAccount = "variables.serverAccount"

// podPolicy returns the policies of an installation; nil if it has none.
func podPolicy(o Options) []runtime.Object {
	if o.PodPolicy == "" {
		return nil
	}
	return PodPolicies(PodPolicy{
		Namespace: o.Namespace, Deployment: VeleroDeployment, PodsDir: path.Join(o.kubeletRoot(), "pods"),
		Account: o.Movers.PolicyAccount(), Privileged: fmt.Sprint(o.PodPolicy == PodPolicyPrivileged),
	})
}

// PodPolicies returns ValidatingAdmissionPolicies with their bindings. They refuse the agents' ServiceAccount every
// pod and job that agents do not create, and changes of existing pods. Kubernetes has them from 1.30.
//
// A policy whose parameter does not exist denies each object that it matches, of any user: Kubernetes looks for the
// parameter before it evaluates the match conditions. So the policies with a parameter match only what has a label of
// agents, in Velero's namespace. Another policy, without a parameter, denies agents everything else.
func PodPolicies(p PodPolicy) []runtime.Object {
	created := admissionv1.ValidatingAdmissionPolicySpec{
		// The policy follows an upgrade of Velero: it reads image, ServiceAccount and Secrets from the server.
		ParamKind: &admissionv1.ParamKind{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
	}
	movers, jobs := created, created
	movers.MatchConstraints = p.labeled(api.LabelMover, matching(admissionv1.Create, objectsOf("", "pods")))
	movers.Variables = p.variables("object.spec",
		"has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, o.kind.startsWith('PodVolume'))")
	movers.Validations = append(moverValidations(), podValidations()...)
	jobs.MatchConstraints = p.labeled(api.LabelRepository, matching(admissionv1.Create, objectsOf("batch", "jobs")))
	jobs.Variables = p.variables("object.spec.template.spec", "false")
	jobs.Validations = append(jobValidations(), podValidations()...)
	others := admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: matching(admissionv1.Create, objectsOf("", "pods"), objectsOf("batch", "jobs")), Validations: p.otherValidations(),
	}
	patches := admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: matching(admissionv1.Update, objectsOf("", "pods")), Validations: patchValidations(),
	}
	var all []runtime.Object
	for _, policy := range []struct {
		suffix string
		spec   admissionv1.ValidatingAdmissionPolicySpec
	}{{"-movers", movers}, {"-jobs", jobs}, {"-others", others}, {"-patches", patches}} {
		all = append(all, p.policy(policy.suffix, policy.spec)...)
	}
	return all
}

// policy returns a policy for requests of the agents, and its binding.
func (p PodPolicy) policy(suffix string, spec admissionv1.ValidatingAdmissionPolicySpec) []runtime.Object {
	name := clusterName(p.Namespace) + suffix
	spec.FailurePolicy = new(admissionv1.Fail)
	spec.MatchConditions = []admissionv1.MatchCondition{{
		Name:       "agents",
		Expression: fmt.Sprintf("request.userInfo.username == 'system:serviceaccount:%s:%s'", p.Namespace, ServiceAccountName),
	}}
	binding := admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}
	if spec.ParamKind != nil {
		binding.ParamRef = &admissionv1.ParamRef{
			Name: p.Deployment, Namespace: p.Namespace, ParameterNotFoundAction: new(admissionv1.DenyAction),
		}
	}
	version := admissionv1.SchemeGroupVersion.String()
	return []runtime.Object{
		&admissionv1.ValidatingAdmissionPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: version, Kind: "ValidatingAdmissionPolicy"},
			ObjectMeta: meta("", name), Spec: spec,
		},
		&admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: version, Kind: "ValidatingAdmissionPolicyBinding"},
			ObjectMeta: meta("", name), Spec: binding,
		},
	}
}

func matching(operation admissionv1.OperationType, rules ...admissionv1.Rule) *admissionv1.MatchResources {
	all := &admissionv1.MatchResources{}
	for _, each := range rules {
		all.ResourceRules = append(all.ResourceRules, admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{operation}, Rule: each,
		}})
	}
	return all
}

func objectsOf(group, resource string) admissionv1.Rule {
	return admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}}
}

// labeled restricts what is matched to objects with a label in Velero's namespace.
func (p PodPolicy) labeled(label string, all *admissionv1.MatchResources) *admissionv1.MatchResources {
	all.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: label, Operator: metav1.LabelSelectorOpExists}}}
	all.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: p.Namespace}}
	return all
}
