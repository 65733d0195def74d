package startup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// maintenanceFlag names the ConfigMap of maintenance jobs. In Velero, only the server has it. In Lateen, the agents
// have it too.
const maintenanceFlag = "--repo-maintenance-job-configmap"

// MaintenanceConfigMap returns the name of the ConfigMap of maintenance jobs, and the workload that names it. The
// agents' own flag takes precedence over the flag of Velero's server, which may be nil. Both results are empty if neither
// flag is set.
func MaintenanceConfigMap(own string, server *appsv1.Deployment) (name string, by NamedBy) {
	if own != "" {
		return own, NamedByAgents
	}
	if server == nil {
		return "", ""
	}
	if name = FlagOf(api.ServerContainer(server.Spec.Template.Spec), maintenanceFlag); name == "" {
		return "", ""
	}
	return name, NamedBy("Deployment " + server.Name)
}

// findMaintenance finds the ConfigMap of maintenance jobs without another request.
func (l loader) findMaintenance(_ context.Context, startup *Startup) error {
	startup.MaintenanceConfigMap, startup.MaintenanceNamedBy = MaintenanceConfigMap(l.options.MaintenanceConfigMap, startup.server)
	return nil
}

// FlagOf returns the value of a flag on the command line of containers, in one token or in two. The last value
// counts. It is empty if the flag is not set.
func FlagOf(containers []corev1.Container, flag string) (value string) {
	for _, container := range containers {
		arguments := slices.Concat(container.Command, container.Args)
		for at, argument := range arguments {
			if joined, ok := strings.CutPrefix(argument, flag+"="); ok {
				value = joined
			}
			if argument == flag && at+1 < len(arguments) {
				value = arguments[at+1]
			}
		}
	}
	return value
}

// ReadMaintenance reads the current maintenance settings of a repository. Unlike all other configuration, they take
// effect without a restart, as in Velero. Here, server is Velero's, or nil. A setting
// that cannot be used has its default and a Problem. An error means that the ConfigMap could not be read, so no job
// can be planned.
func ReadMaintenance(ctx context.Context, client kubernetes.Interface, options Options, server *appsv1.Deployment, repository *velerov1.BackupRepository) (config.Maintenance, []config.Problem, error) {
	name, _ := MaintenanceConfigMap(options.MaintenanceConfigMap, server)
	if name == "" {
		return config.DefaultMaintenance(), nil, nil
	}
	what := object{resource: "configmaps", namespace: options.Namespace, name: name}
	found, err := client.CoreV1().ConfigMaps(what.namespace).Get(ctx, what.name, metav1.GetOptions{})
	result := config.DefaultMaintenance()
	switch {
	case apierrors.IsNotFound(err):
		result.Unreadable = priority.ConfigMissing
		return result, []config.Problem{config.NoConfigMap(config.SectionMaintenance, what.namespace, what.name)}, nil
	case apierrors.IsForbidden(err):
		result.Unreadable = priority.Forbidden
		return result, []config.Problem{{
			Section: config.SectionMaintenance, Path: what.String(), Reason: config.Forbidden,
			Message: "not allowed to read it, so maintenance jobs have defaults; allow get on configmaps in " + what.namespace,
		}}, nil
	case err != nil:
		return result, nil, fmt.Errorf("get %s: %w", what, err)
	}
	spec := repository.Spec
	result, problems := config.ParseMaintenance(found.Data, spec.VolumeNamespace+"-"+spec.BackupStorageLocation+"-"+spec.RepositoryType)
	what.setPaths(problems)
	return result, problems, nil
}

// JobTemplate returns the fields that maintenance jobs inherit from Velero's server. Its error names what the pod template
// lacks.
func JobTemplate(server *appsv1.Deployment, options Options) (objects.JobTemplate, error) {
	template, err := inheritServer(server.Spec.Template)
	if err != nil {
		return objects.JobTemplate{}, fmt.Errorf("inherit from deployment %s: %w", server.Name, err)
	}
	template.Image = cmp.Or(options.MoverImage, template.Image)
	template.ServiceAccount = cmp.Or(options.MoverServiceAccount, template.ServiceAccount)
	return template, nil
}

// inheritServer inherits from the server's container and ignores its sidecars.
func inheritServer(template corev1.PodTemplateSpec) (objects.JobTemplate, error) {
	own := template.DeepCopy()
	own.Spec.Containers = api.ServerContainer(own.Spec)
	inherited, err := Inherit(*own)
	if err != nil {
		return objects.JobTemplate{}, err
	}
	return objects.JobTemplate{
		Template: inherited, PodSecurity: own.Spec.SecurityContext, ContainerSecurity: own.Spec.Containers[0].SecurityContext,
	}, nil
}
