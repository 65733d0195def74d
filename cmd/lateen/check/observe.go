package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/cmd/lateen/check/preflight"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Installation is the known state of the agents of a namespace before their ConfigMaps are read.
type Installation struct {
	Namespace string
	Agents    *corev1.PodTemplateSpec // of the DaemonSet node-agent; nil if it does not exist
	Server    *appsv1.Deployment      // of Velero; nil if it does not exist
}

// Find reads the workloads of an installation. A missing DaemonSet or Deployment is no error.
func Find(ctx context.Context, client kubernetes.Interface, namespace string) (*Installation, error) {
	found := &Installation{Namespace: namespace}
	agents, err := client.AppsV1().DaemonSets(namespace).Get(ctx, api.DaemonSetName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get daemonset %s/%s: %w", namespace, api.DaemonSetName, err)
	}
	if err == nil {
		found.Agents = &agents.Spec.Template
	}
	found.Server, err = startup.ReadServer(ctx, client, namespace, found.ServerName())
	return found, err
}

// Flag returns the value of a flag on the agents' command line; empty if the flag is not set.
func (i *Installation) Flag(name string) string {
	if i.Agents == nil {
		return ""
	}
	return startup.FlagOf(i.Agents.Spec.Containers, name)
}

// ServerName returns the Deployment from which movers inherit, which often is Velero's server; empty for none.
func (i *Installation) ServerName() string { return startup.ServerName(i.Flag("--mover-template")) }

// Maintenance returns the name of the ConfigMap of maintenance jobs, and the workload that names it.
func (i *Installation) Maintenance() (name string, by startup.NamedBy) {
	return startup.MaintenanceConfigMap(i.Flag("--repo-maintenance-job-configmap"), i.Server)
}

// MoverImage returns the image of the movers: of the agents' flag, else of Velero's server, else of the agents.
func (i *Installation) MoverImage() string {
	image := i.Flag("--mover-image")
	if i.Server != nil {
		image = cmp.Or(image, startup.ServerImage(i.Server.Spec.Template.Spec))
	}
	if i.Agents != nil {
		image = cmp.Or(image, startup.ServerImage(i.Agents.Spec))
	}
	return image
}

// moverAccount returns the ServiceAccount of movers; empty if unknown.
func (i *Installation) moverAccount() string {
	account := i.Flag("--mover-service-account")
	if i.Server != nil {
		account = cmp.Or(account, i.Server.Spec.Template.Spec.ServiceAccountName)
	}
	return account
}

// preflight returns the checks of the cluster. Movers have the settings of the documents.
func (i *Installation) preflight(client kubernetes.Interface, generic dynamic.Interface, documents []Document) *preflight.Installation {
	pods := ""
	if i.Agents != nil {
		pods = startup.PodsDir(*i.Agents)
	}
	return &preflight.Installation{
		Kube: client, Dynamic: generic, Namespace: i.Namespace, Server: i.Server, PodsDir: pods,
		Movers: i.moverTemplate(), Settings: movers(documents),
	}
}

// moverTemplate returns what agents inherit for movers at their start. It has no more than image and ServiceAccount if the
// workload does not exist, or agents refuse it.
func (i *Installation) moverTemplate() objects.Template {
	var from corev1.PodTemplateSpec
	switch ofServer := i.ServerName() != ""; {
	case ofServer && i.Server != nil:
		from = i.Server.Spec.Template
		from.Spec.Containers = api.ServerContainer(from.Spec)
	case !ofServer && i.Agents != nil:
		from = *i.Agents
	}
	template, _ := startup.Inherit(from) // the check of agents shows what agents refuse
	if i.Agents != nil {
		startup.AddPlacement(&template, *i.Agents)
	}
	template.Image, template.ServiceAccount = i.MoverImage(), i.moverAccount()
	return template
}

// movers returns the settings of movers.
func movers(documents []Document) (settings objects.Settings) {
	for _, document := range documents {
		if document.Kind == NodeAgent {
			parsed, _ := config.Parse(document.Data, nil)
			settings = parsed.Movers
		}
	}
	return settings
}

// Documents reads the ConfigMaps with these names. An empty name selects the one of the agents' flags. For
// maintenance jobs, it may also be the one of the server's flag. An error names the request that failed.
func (i *Installation) Documents(ctx context.Context, client kubernetes.Interface, nodeAgent, repository, maintenance string) ([]Document, error) {
	var documents []Document
	jobs, by := i.Maintenance()
	if maintenance != "" {
		jobs, by = maintenance, ""
	}
	for _, want := range []struct {
		kind    Kind
		name    string
		section config.Section
	}{
		{NodeAgent, cmp.Or(nodeAgent, i.Flag("--node-agent-configmap")), config.SectionConfigMap},
		{BackupRepository, cmp.Or(repository, i.Flag("--backup-repository-configmap")), config.SectionBackupRepository},
		{Maintenance, jobs, config.SectionMaintenance},
	} {
		if want.name == "" {
			documents = append(documents, Document{Kind: want.kind, Unset: true})
			continue
		}
		document := Document{Kind: want.kind, Title: titleOf(i.Namespace, want.name)}
		if want.kind == Maintenance {
			document.NamedBy = by
		}
		found, err := client.CoreV1().ConfigMaps(i.Namespace).Get(ctx, want.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			problem := config.NoConfigMap(want.section, i.Namespace, want.name)
			document.Missing = &problem
		case err != nil:
			return nil, fmt.Errorf("get configmap %s/%s: %w", i.Namespace, want.name, err)
		default:
			document.Data = found.Data
		}
		documents = append(documents, document)
	}
	return documents, nil
}

// Observe reads the objects that a configuration may name. It omits what it cannot read, and joins these errors.
func (i *Installation) Observe(ctx context.Context, client kubernetes.Interface) (*Cluster, error) {
	movers := &exposer.Exposer{Client: client, Templates: map[corev1.OSName]objects.Template{corev1.Linux: {Image: i.MoverImage()}}}
	cluster := &Cluster{MoverImage: i.MoverImage(), TryClass: func(class string) priority.Reason { return movers.TryClass(ctx, i.Namespace, class) }}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		err = fmt.Errorf("list nodes: %w", err)
	} else {
		cluster.Nodes = append([]corev1.Node{}, nodes.Items...)
	}
	failed := []error{err}
	storage, err := client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		err = fmt.Errorf("list storage classes: %w", err)
	} else {
		cluster.StorageClasses = map[string]*storagev1.StorageClass{}
		for _, class := range storage.Items {
			cluster.StorageClasses[class.Name] = &class
		}
	}
	failed = append(failed, err)
	classes, err := client.SchedulingV1().PriorityClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		err = fmt.Errorf("list priority classes: %w", err)
	} else {
		cluster.PriorityClasses = map[string]*schedulingv1.PriorityClass{}
		for _, class := range classes.Items {
			cluster.PriorityClasses[class.Name] = &class
		}
	}
	return cluster, errors.Join(append(failed, err)...)
}
