package config

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/exposer/build"
	"github.com/lateen-project/lateen/exposer/priority"
)

// ReadMaintenance reads what the maintenance ConfigMap says of a repository now; unlike all other configuration
// it counts without a restart, as in Velero. What cannot be used has its default and a Problem. An error is that
// the API server has no answer: then there is nothing to be decided.
func ReadMaintenance(ctx context.Context, client kubernetes.Interface, options Options, repository *velerov1.BackupRepository) (Maintenance, []Problem, error) {
	if options.MaintenanceConfigMap == "" {
		return DefaultMaintenance(), nil, nil
	}
	what := object{resource: "configmaps", namespace: options.Namespace, name: options.MaintenanceConfigMap}
	found, err := client.CoreV1().ConfigMaps(what.namespace).Get(ctx, what.name, metav1.GetOptions{})
	result := DefaultMaintenance()
	switch {
	case apierrors.IsNotFound(err):
		result.Unreadable = priority.ConfigMissing
		return result, []Problem{NoMaintenanceConfigMap(what.namespace, what.name)}, nil
	case apierrors.IsForbidden(err):
		result.Unreadable = priority.Forbidden
		return result, []Problem{{
			Section: SectionMaintenance, Path: what.String(), Reason: Forbidden,
			Message: "it may not be read, so maintenance jobs have defaults; allow get on configmaps in " + what.namespace,
		}}, nil
	case err != nil:
		return result, nil, fmt.Errorf("get %s: %w", what, err)
	}
	spec := repository.Spec
	result, problems := ParseMaintenance(found.Data, spec.VolumeNamespace+"-"+spec.BackupStorageLocation+"-"+spec.RepositoryType)
	what.placeAll(problems)
	return result, problems, nil
}

// ReadJobTemplate reads what maintenance jobs take over from Velero's Deployment now; ok is false if there is
// none.
func ReadJobTemplate(ctx context.Context, client kubernetes.Interface, options Options) (template build.JobTemplate, ok bool, err error) {
	server, err := client.AppsV1().Deployments(options.Namespace).Get(ctx, VeleroDeployment, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return build.JobTemplate{}, false, nil
	}
	if err != nil {
		return build.JobTemplate{}, false, fmt.Errorf("get deployment %s: %w", VeleroDeployment, err)
	}
	template, err = inheritServer(server.Spec.Template)
	if err != nil {
		return build.JobTemplate{}, false, fmt.Errorf("inherit from deployment %s: %w", VeleroDeployment, err)
	}
	template.Image = cmp.Or(options.MoverImage, template.Image)
	template.ServiceAccount = cmp.Or(options.MoverServiceAccount, template.ServiceAccount)
	return template, true, nil
}

// inheritServer takes over from the server's container, whatever runs beside it.
func inheritServer(template corev1.PodTemplateSpec) (build.JobTemplate, error) {
	own := template.DeepCopy()
	if len(own.Spec.Containers) > 1 {
		server := max(0, slices.IndexFunc(own.Spec.Containers, func(c corev1.Container) bool { return c.Name == VeleroDeployment }))
		own.Spec.Containers = own.Spec.Containers[server : server+1]
	}
	inherited, err := Inherit(*own)
	if err != nil {
		return build.JobTemplate{}, err
	}
	return build.JobTemplate{
		Template: inherited, PodSecurity: own.Spec.SecurityContext, ContainerSecurity: own.Spec.Containers[0].SecurityContext,
	}, nil
}
