package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/cmd/lateen/config"
)

// checkCluster looks at what the installation names and does not make. A ConfigMap that cannot be used ends the
// installation, as in Velero; a class that is not there is a warning, because it may come later.
func (o *installOptions) checkCluster(ctx context.Context, kube kubernetes.Interface, warnings io.Writer) error {
	o.checkClasses(ctx, kube, warnings)
	return o.checkConfigMaps(ctx, kube, warnings)
}

func (o *installOptions) checkClasses(ctx context.Context, kube kubernetes.Interface, warnings io.Writer) {
	for _, class := range []struct{ flag, name, whose string }{
		{"--server-priority-class-name", o.server.PriorityClass, "the server"},
		{"--node-agent-priority-class-name", o.agent.PriorityClass, "the agents"},
	} {
		if class.name == "" {
			continue
		}
		_, err := kube.SchedulingV1().PriorityClasses().Get(ctx, class.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			fmt.Fprintf(warnings, "Warning: %s: the cluster has no PriorityClass %s; no pod of %s is let in until there is one\n", class.flag, class.name, class.whose)
		case err != nil:
			fmt.Fprintf(warnings, "Warning: %s: cannot tell whether there is a PriorityClass %s: %v\n", class.flag, class.name, err)
		}
	}
}

func (o *installOptions) checkConfigMaps(ctx context.Context, kube kubernetes.Interface, warnings io.Writer) error {
	var wrong []error
	for _, named := range []struct {
		flag, name string
		parse      func(map[string]string) []config.Problem
	}{
		{"--node-agent-configmap", o.agent.NodeAgentConfigMap, func(data map[string]string) []config.Problem {
			_, problems := config.Parse(data, nil)
			return problems
		}},
		{"--backup-repository-configmap", o.agent.BackupRepositoryConfigMap, func(data map[string]string) []config.Problem {
			_, problems := config.ParseRepository(data)
			return problems
		}},
		{"--repo-maintenance-job-configmap", o.maintenanceConfigMap, nil},
	} {
		if named.name == "" {
			continue
		}
		found, err := kube.CoreV1().ConfigMaps(o.cluster.Namespace).Get(ctx, named.name, metav1.GetOptions{})
		if err != nil {
			wrong = append(wrong, fmt.Errorf("read the ConfigMap of %s: %w", named.flag, err))
			continue
		}
		if named.parse == nil {
			continue
		}
		for _, problem := range named.parse(found.Data) {
			if problem.Reason == config.UnknownField || problem.Reason == config.Ignored {
				fmt.Fprintf(warnings, "Warning: ConfigMap %s: %s\n", named.name, problem)
				continue
			}
			wrong = append(wrong, fmt.Errorf("ConfigMap %s: %s", named.name, problem))
		}
	}
	return errors.Join(wrong...)
}
