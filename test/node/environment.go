package node

import (
	"fmt"
	"net/url"

	corev1 "k8s.io/api/core/v1"
)

// environment returns the variables of a container: those of every container, then its own.
func (r Real) environment(pod *corev1.Pod, container corev1.Container) (map[string]string, error) {
	server, err := url.Parse(r.Config.Host)
	if err != nil {
		return nil, fmt.Errorf("parse address of the API server: %w", err)
	}
	environment := map[string]string{
		"HOME": "/tmp", "PATH": "/", "HOSTNAME": pod.Name,
		"KUBERNETES_SERVICE_HOST": server.Hostname(), "KUBERNETES_SERVICE_PORT": server.Port(),
	}
	if container.EnvFrom != nil {
		return nil, fmt.Errorf("container %s: this node does not know envFrom", container.Name)
	}
	for _, variable := range container.Env {
		value := variable.Value
		if variable.ValueFrom != nil {
			if value, err = field(pod, variable); err != nil {
				return nil, err
			}
		}
		environment[variable.Name] = value
	}
	return environment, nil
}

// field returns the value of a downward API variable.
func field(pod *corev1.Pod, variable corev1.EnvVar) (string, error) {
	if variable.ValueFrom.FieldRef == nil {
		return "", fmt.Errorf("variable %s: this node knows fieldRef only", variable.Name)
	}
	switch variable.ValueFrom.FieldRef.FieldPath {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.name":
		return pod.Name, nil
	default:
		return "", fmt.Errorf("variable %s: this node does not know field %s", variable.Name, variable.ValueFrom.FieldRef.FieldPath)
	}
}
