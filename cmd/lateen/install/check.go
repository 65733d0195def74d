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

// checkConfigMaps evaluates the named ConfigMaps as `lateen check` does. Ignored settings, and settings whose objects do not
// exist in the cluster, are warnings.
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
		result := check.Evaluate(document, cluster)
		for i, problem := range result.Problems {
			message := fmt.Sprintf("%s: %s", document.Title, problem)
			if i < result.Parsed && problem.Reason.Invalidates() {
				wrong = append(wrong, errors.New(message))
			} else {
				fmt.Fprintf(warnings, "Warning: %s\n", message)
			}
		}
	}
	return errors.Join(wrong...)
}
