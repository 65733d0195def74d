package deploy

import (
	"errors"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Adoption configures Adopt.
type Adoption struct {
	Image string   // of Lateen
	Args  []string // appended to the agent's existing arguments
}

// Adopt converts the pod template of Velero's node-agent, or of an adopted one, to Lateen's. It replaces image,
// program, ServiceAccount and probes, and keeps all other fields. The error states why the template is not supported.
func Adopt(velero corev1.PodTemplateSpec, adoption Adoption) (corev1.PodTemplateSpec, error) {
	template := *velero.DeepCopy()
	if n := len(template.Spec.Containers); n != 1 {
		return template, fmt.Errorf("its pods have %d containers, want only Velero's node-agent: remove the other containers first, or use lateen install", n)
	}
	container := &template.Spec.Containers[0]
	args, err := AgentArgs(*container)
	if err != nil {
		return template, err
	}
	container.Image, container.Command = adoption.Image, nil
	container.Args = slices.Concat([]string{"node-agent"}, args, hostPathArgs(*container), adoption.Args)
	if !slices.ContainsFunc(container.Env, func(have corev1.EnvVar) bool { return have.Name == podUID }) {
		container.Env = append(container.Env, fromField(podUID, "metadata.uid"))
	}
	if port := metricsPort(*container); port != "" {
		if container.StartupProbe == nil {
			container.StartupProbe = startupProbe(port)
		}
		if container.LivenessProbe == nil {
			container.LivenessProbe = probe("/healthz", port)
		}
		if container.ReadinessProbe == nil {
			container.ReadinessProbe = probe("/readyz", port)
		}
	}
	template.Spec.ServiceAccountName, template.Spec.DeprecatedServiceAccount = ServiceAccountName, ""
	return template, nil
}

// hostPathArgs lets agents find volumes under the kubelet's directory if Velero's agents have it mounted. They then
// find every volume that Velero's agents found.
func hostPathArgs(container corev1.Container) []string {
	for _, mount := range container.VolumeMounts {
		if mount.Name == HostPodsVolume {
			return []string{"--host-path=" + mount.MountPath}
		}
	}
	return nil
}

// PodsDir returns the kubelet's pods directory that agents have mounted, or the default one.
func PodsDir(velero corev1.PodTemplateSpec) string {
	for _, volume := range velero.Spec.Volumes {
		if volume.Name == HostPodsVolume && volume.HostPath != nil {
			return volume.HostPath.Path
		}
	}
	return path.Join(DefaultKubeletRoot, "pods")
}

// metricsPort returns the name of the agents' metrics port; empty if the container has no such named port. `velero
// install` and Helm's chart use different names.
func metricsPort(container corev1.Container) string {
	for _, port := range container.Ports {
		if port.ContainerPort == MetricsPort {
			return port.Name
		}
	}
	return ""
}

// AgentArgs returns the arguments after `velero node-agent server`. They have the same meaning in Lateen. The error
// means that the container does not run this command.
func AgentArgs(container corev1.Container) ([]string, error) {
	description := slices.Concat(container.Command, container.Args)
	server := slices.Index(description, "server")
	if server < 1 || description[server-1] != "node-agent" {
		return nil, errors.New("its container does not run velero node-agent server, so it is not Velero's node-agent")
	}
	return description[server+1:], nil
}

// RunsServer reports whether a container runs Velero's server.
func RunsServer(container corev1.Container) bool {
	description := slices.Concat(container.Command, container.Args)
	at := slices.Index(description, "server")
	return at > 0 && path.Base(description[at-1]) == "velero"
}
