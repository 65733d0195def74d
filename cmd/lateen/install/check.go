package install

import (
	"context"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/cmd/lateen/check"
	"github.com/lateen-project/lateen/cmd/lateen/configmap"
)

// checkCluster checks the existing objects that the installation names. An unusable ConfigMap fails the installation,
// as in Velero. A missing class is a warning, because it may be created later.
func (o *options) checkCluster(ctx context.Context, kube kubernetes.Interface, warnings io.Writer) error {
	o.checkClasses(ctx, kube, warnings)
	return o.checkConfigMaps(ctx, kube, warnings)
}

func (o *options) checkClasses(ctx context.Context, kube kubernetes.Interface, warnings io.Writer) {
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
			fmt.Fprintf(warnings, "Warning: %s: PriorityClass %s does not exist; pods of %s cannot be created until it does\n", class.flag, class.name, class.whose)
		case err != nil:
			fmt.Fprintf(warnings, "Warning: %s: cannot check whether PriorityClass %s exists: %v\n", class.flag, class.name, err)
		}
	}
}

// checkConfigMaps evaluates the named ConfigMaps as `lateen check` does.
func (o *options) checkConfigMaps(ctx context.Context, kube kubernetes.Interface, warnings io.Writer) error {
	maintenance := o.agent.MaintenanceConfigMap
	if o.agent.NodeAgentConfigMap == "" && o.agent.BackupRepositoryConfigMap == "" && maintenance == "" {
		return nil
	}
	installation := check.Installation{Namespace: o.cluster.Namespace}
	documents, err := installation.Documents(ctx, kube, o.agent.NodeAgentConfigMap, o.agent.BackupRepositoryConfigMap, maintenance)
	if err != nil {
		return err
	}
	cluster, unreadable := installation.Observe(ctx, kube)
	if unreadable != nil {
		fmt.Fprintf(warnings, "Warning: cannot check the objects named in the ConfigMaps: %v\n", unreadable)
	}
	cluster.MoverImage = o.server.Image
	var wrong []error
	for _, document := range documents {
		if document.Missing != nil {
			wrong = append(wrong, errors.New(document.Missing.String()))
			continue
		}
		fatal, harmless := classify(document, cluster)
		for _, problem := range harmless {
			fmt.Fprintf(warnings, "Warning: %s: %s\n", document.Title, problem)
		}
		for _, problem := range fatal {
			wrong = append(wrong, fmt.Errorf("%s: %s", document.Title, problem))
		}
	}
	return errors.Join(wrong...)
}

// classify separates Problems that no agent can use from ignored settings, and from settings whose objects are missing
// in the cluster.
func classify(document check.Document, cluster *check.Cluster) (fatal, harmless []configmap.Problem) {
	written := map[string]bool{}
	for _, problem := range check.Evaluate(document, nil).Problems {
		written[problem.String()] = true
	}
	for _, problem := range check.Evaluate(document, cluster).Problems {
		if problem.Reason.Invalidates() && written[problem.String()] {
			fatal = append(fatal, problem)
		} else {
			harmless = append(harmless, problem)
		}
	}
	return fatal, harmless
}
