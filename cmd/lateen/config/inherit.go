package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Volumes of Velero's DaemonSet that mount host directories. A mover gets only the one volume that it moves.
const (
	hostPodsVolume    = "host-pods"
	hostPluginsVolume = "host-plugins"
)

// Labels, annotations and taints that cloud providers use for the identity and the placement of a pod
// (velero-protocol 2.1).
func identityLabels() []string      { return []string{"azure.workload.identity/use"} }
func identityAnnotations() []string { return []string{"iam.amazonaws.com/role"} }
func inheritedTaints() []string {
	return []string{"kubernetes.azure.com/scalesetpriority", "CriticalAddonsOnly"}
}

// Inherit copies what a mover needs from the pod template of a workload. It copies no host mounts and no placement of
// the workload. Its error names what the template lacks. The caller adds the name of the workload.
func Inherit(template corev1.PodTemplateSpec) (objects.Template, error) {
	own := template.DeepCopy()
	if n := len(own.Spec.Containers); n != 1 {
		return objects.Template{}, fmt.Errorf("pod template has %d containers, want 1; name another workload with --mover-template", n)
	}
	container := own.Spec.Containers[0]
	arguments, err := logArgs(slices.Concat(container.Command, container.Args))
	if err != nil {
		return objects.Template{}, err
	}
	return objects.Template{
		Image:            container.Image,
		ServiceAccount:   own.Spec.ServiceAccountName,
		Env:              withIdentity(container.Env),
		EnvFrom:          container.EnvFrom,
		Volumes:          slices.DeleteFunc(own.Spec.Volumes, func(v corev1.Volume) bool { return hosts(v.Name) }),
		VolumeMounts:     slices.DeleteFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return hosts(m.Name) }),
		DNSPolicy:        own.Spec.DNSPolicy,
		DNSConfig:        own.Spec.DNSConfig,
		ImagePullSecrets: own.Spec.ImagePullSecrets,
		LogArgs:          arguments,
		Labels:           only(own.Labels, identityLabels()),
		Annotations:      only(own.Annotations, identityAnnotations()),
		Tolerations:      tolerations(own.Spec.Tolerations),
	}, nil
}

// AddPlacement adds the placement of agents to a template, from the pod template of their DaemonSet.
func AddPlacement(template *objects.Template, agents corev1.PodTemplateSpec) {
	own := agents.Spec.DeepCopy()
	template.AgentNodeSelector, template.AgentTolerations = own.NodeSelector, own.Tolerations
	if own.Affinity != nil && own.Affinity.NodeAffinity != nil {
		template.AgentAffinity = own.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
}

// HostPods returns the kubelet's pods directory on the host, from the volume host-pods of a node-agent. It is empty
// if the template has no such volume.
func HostPods(template corev1.PodTemplateSpec) string {
	for _, volume := range template.Spec.Volumes {
		if volume.Name == hostPodsVolume && volume.HostPath != nil {
			return volume.HostPath.Path
		}
	}
	return ""
}

func hosts(volume string) bool { return volume == hostPodsVolume || volume == hostPluginsVolume }

// logArgs returns the log flags as one token each, whether the arguments have one token or two.
func logArgs(arguments []string) ([]string, error) {
	var found []string
	for i, argument := range arguments {
		name, _, joined := strings.Cut(argument, "=")
		if name != "--log-level" && name != "--log-format" {
			continue
		}
		if joined {
			found = append(found, argument)
			continue
		}
		if i+1 == len(arguments) {
			return nil, errors.New("last argument " + name + " has no value; add one or remove the argument")
		}
		found = append(found, name+"="+arguments[i+1])
	}
	return found, nil
}

// withIdentity adds the variables that every mover reads from its environment (velero-protocol 3.1). A node-agent's
// template has both. The template of Velero's Deployment lacks NODE_NAME.
func withIdentity(env []corev1.EnvVar) []corev1.EnvVar {
	for _, need := range []struct{ name, field string }{
		{"NODE_NAME", "spec.nodeName"},
		{"VELERO_NAMESPACE", "metadata.namespace"},
	} {
		if slices.ContainsFunc(env, func(have corev1.EnvVar) bool { return have.Name == need.name }) {
			continue
		}
		env = append(env, corev1.EnvVar{Name: need.name, ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: need.field},
		}})
	}
	return env
}

// only returns the entries with these names; nil if there are none.
func only(all map[string]string, names []string) map[string]string {
	var kept map[string]string
	for _, name := range names {
		if text, ok := all[name]; ok {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[name] = text
		}
	}
	return kept
}

// tolerations returns the first toleration of each taint that movers inherit.
func tolerations(all []corev1.Toleration) []corev1.Toleration {
	var kept []corev1.Toleration
	for _, taint := range inheritedTaints() {
		if i := slices.IndexFunc(all, func(t corev1.Toleration) bool { return t.Key == taint }); i >= 0 {
			kept = append(kept, all[i])
		}
	}
	return kept
}
