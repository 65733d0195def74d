package deploy

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// PodPolicy are the parts of the admission policies that depend on the installation. All are texts, so that the chart
// can fill them in.
type PodPolicy struct {
	Namespace  string
	PodsDir    string // the kubelet's pods directory
	Privileged string // CEL: whether movers of pod volumes may be privileged
	Account    string // the ServiceAccount of movers and jobs
	Image      string // of Velero's server; its tag and digest do not matter
	Secrets    string // CEL: the list of the Secrets that pods may have
	Drivers    string // CEL: the list of the CSI drivers whose inline volumes pods may have
	// CEL: the lists of the Secrets and ConfigMaps that agents may copy
	CopySecrets, CopyConfigMaps string
}

// Inherited is what movers and jobs inherit from the workloads of Velero, and the policies allow.
type Inherited struct {
	Image, Account      string // Image without tag and digest
	Secrets, CSIDrivers []string
}

// Inherited is what Velero's own server gives movers and jobs.
func (v Velero) Inherited() Inherited { return InheritedFrom(serverPod(v), corev1.PodSpec{}) }

// InheritedFrom reads image and ServiceAccount from the pods of Velero's server, and Secrets and CSI drivers from those
// of the agents too. Without a container that runs the server, the image is that of the first one.
func InheritedFrom(server, agents corev1.PodSpec) Inherited {
	found := Inherited{Account: cmp.Or(server.ServiceAccountName, "default")}
	if len(server.Containers) > 0 {
		image := server.Containers[max(slices.IndexFunc(server.Containers, RunsServer), 0)].Image
		found.Image = regexp.MustCompile(repository).FindString(image)
	}
	for _, pod := range []corev1.PodSpec{server, agents} {
		found.addVolumes(pod.Volumes)
		for _, container := range pod.Containers {
			found.addVariables(container)
		}
	}
	slices.Sort(found.Secrets)
	slices.Sort(found.CSIDrivers)
	found.Secrets, found.CSIDrivers = slices.Compact(found.Secrets), slices.Compact(found.CSIDrivers)
	return found
}

func (i *Inherited) addVolumes(volumes []corev1.Volume) {
	for _, volume := range volumes {
		switch {
		case volume.Secret != nil:
			i.Secrets = append(i.Secrets, volume.Secret.SecretName)
		case volume.CSI != nil:
			i.CSIDrivers = append(i.CSIDrivers, volume.CSI.Driver)
			if secret := volume.CSI.NodePublishSecretRef; secret != nil {
				i.Secrets = append(i.Secrets, secret.Name)
			}
		case volume.Projected != nil:
			for _, source := range volume.Projected.Sources {
				if source.Secret != nil {
					i.Secrets = append(i.Secrets, source.Secret.Name)
				}
			}
		}
	}
}

func (i *Inherited) addVariables(container corev1.Container) {
	for _, variable := range container.Env {
		if variable.ValueFrom != nil && variable.ValueFrom.SecretKeyRef != nil {
			i.Secrets = append(i.Secrets, variable.ValueFrom.SecretKeyRef.Name)
		}
	}
	for _, all := range container.EnvFrom {
		if all.SecretRef != nil {
			i.Secrets = append(i.Secrets, all.SecretRef.Name)
		}
	}
}

// PodPolicyOf returns the parts for an installation whose policies have that mode.
func PodPolicyOf(namespace, podsDir, mode string, movers Movers, copies Copies, from Inherited) PodPolicy {
	p := PodPolicy{
		Namespace: namespace, PodsDir: podsDir, Privileged: fmt.Sprint(mode == PodPolicyPrivileged), Account: from.Account,
		Image: from.Image, Secrets: celList(from.Secrets), Drivers: celList(from.CSIDrivers),
		CopySecrets: celList(copies.Secrets), CopyConfigMaps: celList(copies.ConfigMaps),
	}
	if movers.Account {
		p.Account = MoverAccountName
	}
	return p
}

// celList returns a list of names as CEL, which has the lists of JSON.
func celList(names []string) string {
	quoted := make([]string, 0, len(names))
	for _, name := range names {
		quoted = append(quoted, strconv.Quote(name))
	}
	return "[" + strings.Join(quoted, ",") + "]"
}

// podPolicy returns the policies of an installation; nil if it has none.
func podPolicy(o Options) []runtime.Object {
	if o.PodPolicy == "" {
		return nil
	}
	return PodPolicies(PodPolicyOf(o.Namespace, path.Join(o.kubeletRoot(), "pods"), o.PodPolicy, o.Movers, o.Copies, o.Inherited))
}

// PodPolicies returns ValidatingAdmissionPolicies with their bindings. They refuse the agents' ServiceAccount every
// pod and job that agents do not create, changes of existing pods, and every Secret and ConfigMap that is not a copy
// with a name that the agents may copy. Kubernetes has them from 1.30.
//
// They have no parameter. If the last policy with a parameter of a built-in kind is deleted, an API server stops to watch
// this kind, and policies that are created later use what it has seen last (kubernetes/kubernetes#130887).
func PodPolicies(p PodPolicy) []runtime.Object {
	place := []admissionv1.Validation{p.placeValidation("pods and jobs")}
	movers := admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: matching("", []string{"pods"}, admissionv1.Create),
		Variables:        p.variables("object.metadata", "object.spec", owned("PodVolume"), owned("DataUpload")),
		Validations:      slices.Concat(place, moverValidations(), podValidations()),
	}
	jobs := admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: matching("batch", []string{"jobs"}, admissionv1.Create),
		Variables:        p.variables("object.spec.template.metadata", "object.spec.template.spec", "false", "false"),
		Validations:      slices.Concat(place, jobValidations(), podValidations()),
	}
	patches := admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: matching("", []string{"pods"}, admissionv1.Update), Validations: patchValidations(),
	}
	copies := admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: matching("", []string{"secrets", "configmaps"}, admissionv1.Create, admissionv1.Update),
		Variables:        p.copyVariables(),
		Validations:      append([]admissionv1.Validation{p.placeValidation("Secrets and ConfigMaps")}, copyValidations()...),
	}
	return slices.Concat(p.policy("-movers", movers), p.policy("-jobs", jobs), p.policy("-patches", patches), p.policy("-copies", copies))
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

func matching(group string, resources []string, operations ...admissionv1.OperationType) *admissionv1.MatchResources {
	return &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: operations,
			Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: resources},
		},
	}}}
}
