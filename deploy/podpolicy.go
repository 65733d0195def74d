package deploy

import (
	"cmp"
	"encoding/json"
	"path"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/exposer/api"
)

// Values of Options.PodPolicy.
const (
	PodPolicyRestricted = "restricted" // no privileged containers
	PodPolicyPrivileged = "privileged" // privileged movers of pod volumes, for privilegedFsBackup
)

// PodPolicy is what the admission policies depend on.
type PodPolicy struct {
	Namespace string
	PodsDir   string // the kubelet's pods directory
	Mode      string // PodPolicyRestricted or PodPolicyPrivileged
	Movers    Movers
	Copies    Copies
	Inherited Inherited
}

func (o Options) podPolicy() PodPolicy {
	return PodPolicy{
		Namespace: o.Namespace, PodsDir: path.Join(o.kubeletRoot(), "pods"), Mode: o.PodPolicy, Movers: o.Movers, Copies: o.Copies, Inherited: o.Inherited,
	}
}

// PodPolicies returns the ValidatingAdmissionPolicies of the agents' ServiceAccount with their bindings.
func PodPolicies(p PodPolicy) []runtime.Object {
	account := p.Inherited.Account
	if p.Movers.Account {
		account = MoverAccountName
	}
	variables := map[string]string{ // by the names of variables in policies.yaml
		"image": cel(p.Inherited.Image), "account": cel(account), "secrets": cel(p.Inherited.Secrets), "drivers": cel(p.Inherited.CSIDrivers),
		"podsDir": cel(path.Clean(p.PodsDir) + "/"), "privileged": cel(p.Mode == PodPolicyPrivileged),
		"copySecrets": cel(p.Copies.Secrets), "copyConfigMaps": cel(p.Copies.ConfigMaps),
	}
	all := read("components/pod-policy/policies.yaml", p.Namespace)
	for _, object := range all {
		policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy)
		if !ok {
			continue
		}
		for index := range policy.Spec.Variables {
			variable := &policy.Spec.Variables[index]
			variable.Expression = cmp.Or(variables[variable.Name], variable.Expression)
		}
	}
	return all
}

// cel returns a value as CEL, which has the string, boolean and list literals of JSON.
func cel(value any) string {
	if list, ok := value.([]string); ok && list == nil {
		return "[]"
	}
	text, _ := json.Marshal(value) //nolint:errchkjson // see above
	return string(text)
}

// Inherited is what movers and jobs inherit from the workloads of Velero, and the policies allow.
type Inherited struct {
	Image, Account      string // Image without tag and digest
	Secrets, CSIDrivers []string
}

// Inherited is what Velero's own server gives movers and jobs.
func (v Velero) Inherited() Inherited {
	return InheritedFrom(deployment(v).Spec.Template.Spec, corev1.PodSpec{})
}

// InheritedFrom reads image and ServiceAccount from the pods of Velero's server, and Secrets and CSI drivers from those
// of the agents too.
func InheritedFrom(server, agents corev1.PodSpec) Inherited {
	found := Inherited{Account: cmp.Or(server.ServiceAccountName, "default")}
	for _, container := range api.ServerContainer(server) {
		found.Image, _, _ = api.SplitImage(container.Image)
	}
	found.Add(server)
	found.Add(agents)
	return found
}

// Add adds the Secrets and CSI drivers of a pod.
func (i *Inherited) Add(pod corev1.PodSpec) {
	i.addVolumes(pod.Volumes)
	for _, container := range pod.Containers {
		i.addVariables(container)
	}
	slices.Sort(i.Secrets)
	slices.Sort(i.CSIDrivers)
	i.Secrets, i.CSIDrivers = slices.Compact(i.Secrets), slices.Compact(i.CSIDrivers)
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
