package node

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// environment returns the variables of a container: those of every container, those of envFrom, then its own.
func (r Real) environment(ctx context.Context, pod *corev1.Pod, container corev1.Container) (map[string]string, error) {
	server, err := url.Parse(r.Config.Host)
	if err != nil {
		return nil, fmt.Errorf("parse address of the API server: %w", err)
	}
	environment := map[string]string{
		"HOME": "/tmp", "PATH": "/", "HOSTNAME": pod.Name,
		"KUBERNETES_SERVICE_HOST": server.Hostname(), "KUBERNETES_SERVICE_PORT": server.Port(),
	}
	for _, source := range container.EnvFrom {
		found, err := r.envFrom(ctx, pod.Namespace, source)
		if err != nil {
			return nil, err
		}
		maps.Copy(environment, found)
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

// envFrom reads the variables of a ConfigMap or a Secret. A missing optional one has none.
func (r Real) envFrom(ctx context.Context, namespace string, source corev1.EnvFromSource) (map[string]string, error) {
	client, err := kubernetes.NewForConfig(r.Config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	found := map[string]string{}
	optional := false
	if from := source.ConfigMapRef; from != nil {
		optional = ptr.Deref(from.Optional, false)
		var config *corev1.ConfigMap
		if config, err = client.CoreV1().ConfigMaps(namespace).Get(ctx, from.Name, metav1.GetOptions{}); err == nil {
			for name, value := range config.Data {
				found[source.Prefix+name] = value
			}
		}
	} else if from := source.SecretRef; from != nil {
		optional = ptr.Deref(from.Optional, false)
		var secret *corev1.Secret
		if secret, err = client.CoreV1().Secrets(namespace).Get(ctx, from.Name, metav1.GetOptions{}); err == nil {
			for name, value := range secret.Data {
				found[source.Prefix+name] = string(value)
			}
		}
	}
	if err != nil && (!optional || !apierrors.IsNotFound(err)) {
		return nil, fmt.Errorf("read variables of envFrom: %w", err)
	}
	return found, nil
}

// field returns the value of a downward API variable.
func field(pod *corev1.Pod, variable corev1.EnvVar) (string, error) {
	if variable.ValueFrom.FieldRef == nil {
		return "", fmt.Errorf("variable %s: this node knows fieldRef only", variable.Name)
	}
	switch path := variable.ValueFrom.FieldRef.FieldPath; path {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.name":
		return pod.Name, nil
	case "metadata.uid":
		return string(pod.UID), nil
	default:
		return "", fmt.Errorf("variable %s: this node does not know field %s", variable.Name, strings.TrimSpace(path))
	}
}
