// Package install is `lateen install`: it creates or updates the objects of Velero's server and of Lateen's agents. It
// never deletes one.
package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/cmd/lateen/check"
	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
)

// NewCommand returns `lateen install`. The user agent is that of all its requests.
func NewCommand(userAgent string) *cobra.Command {
	options := options{cluster: cli.Flags{UserAgent: userAgent}}
	command := &cobra.Command{
		Use:   "install",
		Short: "Install Velero's server with Lateen as its node-agent",
		Args:  cobra.NoArgs,
		Example: `  lateen install --lateen-image registry.example/lateen:v1 --provider aws --plugins velero/velero-plugin-for-aws:v1.14.0 \
    --bucket backups --secret-file ./credentials --backup-location-config region=eu-central-1 --wait
  lateen install --crds-only`,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.validate(); err != nil {
				return err
			}
			options.frequencyGiven = command.Flags().Changed("repo-maintenance-frequency")
			if err := options.complete(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(command.Context(), options.timeout)
			defer cancel()
			return options.run(ctx, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	options.addFlags(command.Flags())
	return command
}

func (o *options) run(ctx context.Context, out, warnings io.Writer) error {
	client, err := o.target(ctx, out, warnings)
	if err != nil {
		return err
	}
	definitions, rest, err := o.manifests()
	if err != nil {
		return err
	}
	if err := o.output.PrintManifests(out, slices.Concat(definitions, rest)); err != nil || o.dryRun {
		return err
	}
	return o.send(ctx, client, definitions, rest, warnings)
}

// target returns the cluster to install in, and adopts its settings that must stay; nil for a dry run.
func (o *options) target(ctx context.Context, out, warnings io.Writer) (*cli.Client, error) {
	o.agent.Inherited = o.server.Inherited()
	if o.dryRun {
		return nil, nil
	}
	if o.output != "" {
		out = warnings // standard output is reserved for the objects
	}
	client, err := o.cluster.Connect(out)
	if err != nil {
		return nil, err
	}
	client.Apply = o.apply
	if err := o.keepCredentials(ctx, client); err != nil {
		return nil, err
	}
	if err := errors.Join(o.keepFrequency(ctx, client), o.keepArgs(ctx, client)); err != nil {
		return nil, err
	}
	return client, o.inheritMore(ctx, client)
}

// keepCredentials refuses to take the Secret of an earlier installation from the server: nothing would report it.
func (o *options) keepCredentials(ctx context.Context, client *cli.Client) error {
	const name = "cloud-credentials"
	if !o.apply || !o.noSecret || o.crdsOnly {
		return nil
	}
	server, err := startup.ReadServer(ctx, client.Kube, client.Namespace, "")
	if server == nil || err != nil {
		return err
	}
	for _, volume := range server.Spec.Template.Spec.Volumes {
		if volume.Secret != nil && volume.Secret.SecretName == name {
			return fmt.Errorf("--no-secret would take Secret %s from Velero's server and its movers: use --secret-file, with a file that has its key \"cloud\"; or remove volume %s from Deployment %s first", name, volume.Name, server.Name)
		}
	}
	return nil
}

// inheritMore has the pod policy allow what the Deployment of Velero's server has beyond this installation: an apply keeps it.
func (o *options) inheritMore(ctx context.Context, client *cli.Client) error {
	if o.agent.PodPolicy == "" {
		return nil
	}
	server, err := startup.ReadServer(ctx, client.Kube, client.Namespace, "")
	if server != nil {
		o.agent.Inherited.Add(server.Spec.Template.Spec)
	}
	return err
}

// send installs the objects and, with --wait, waits for the workloads.
func (o *options) send(ctx context.Context, client *cli.Client, definitions, rest []*unstructured.Unstructured, warnings io.Writer) error {
	if !o.crdsOnly {
		o.checkClasses(ctx, client, warnings)
		if err := o.checkConfigMaps(ctx, client.Kube, warnings); err != nil {
			return err
		}
	}
	if err := client.RefuseForeign(ctx, rest); err != nil {
		return err
	}
	if o.apply && o.useNodeAgent && !o.crdsOnly && o.agent.PodPolicy == "" {
		if err := client.RefusePodPolicies(ctx); err != nil {
			return err
		}
	}
	if !o.apply && o.useNodeAgent && !o.crdsOnly && o.agent.PodPolicy != "" {
		if err := client.RefuseLatePodPolicies(ctx); err != nil {
			return err
		}
	}
	if err := client.InstallDefinitions(ctx, definitions); err != nil {
		return err
	}
	for _, manifest := range rest {
		if err := client.Install(ctx, manifest); err != nil {
			return err
		}
	}
	if o.apply && o.useNodeAgent && !o.crdsOnly {
		if err := client.WarnOfCopyRights(ctx, rest, warnings); err != nil {
			return err
		}
	}
	if err := o.setFrequencies(ctx, client); err != nil {
		return err
	}
	if o.wait && !o.crdsOnly {
		return client.UntilReady(ctx, o.daemonSets()...)
	}
	return nil
}

// daemonSets returns the names of the agents' DaemonSets.
func (o *options) daemonSets() []string {
	switch {
	case !o.useNodeAgent:
		return nil
	case o.agent.Windows:
		return []string{api.DaemonSetName, api.WindowsDaemonSetName}
	}
	return []string{api.DaemonSetName}
}

// manifests returns the definitions, and the remaining objects.
func (o *options) manifests() (definitions, rest []*unstructured.Unstructured, err error) {
	if definitions, err = cli.Manifests(o.cluster.Namespace, deploy.Definitions()); err != nil || o.crdsOnly {
		return definitions, nil, err
	}
	objects := deploy.Server(o.server)
	if o.useNodeAgent {
		objects = append(objects, deploy.Objects(o.agent)...)
		objects = append(objects, deploy.CopyAccess(o.cluster.Namespace, o.agent.Copies)...)
	}
	rest, err = cli.Manifests(o.cluster.Namespace, objects)
	return definitions, rest, err
}

// checkClasses warns of classes that the installation names: each may be created later.
func (o *options) checkClasses(ctx context.Context, client *cli.Client, warnings io.Writer) {
	for _, class := range []struct{ flag, name, whose, workload string }{
		{"--server-priority-class-name", o.server.PriorityClass, "the server", "Velero server deployment"},
		{"--node-agent-priority-class-name", o.agent.PriorityClass, "the agents", "node agent daemonset"},
	} {
		if class.name == "" {
			continue
		}
		fmt.Fprintf(client.Out, "Setting priority class %q for %s\n", class.name, class.workload)
		_, err := client.Kube.SchedulingV1().PriorityClasses().Get(ctx, class.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			fmt.Fprintf(warnings, "Warning: %s: PriorityClass %s does not exist; pods of %s cannot be created until it does\n", class.flag, class.name, class.whose)
		case err != nil:
			fmt.Fprintf(warnings, "Warning: %s: cannot check whether PriorityClass %s exists: %v\n", class.flag, class.name, err)
		}
	}
}

// checkConfigMaps evaluates the named ConfigMaps as `lateen check` does. An unusable one fails the installation, as in Velero. Ignored settings, and settings whose objects do not
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

// serverWaits is the frequency that keeps Velero's server from repositories that the agents maintain. serverDefault
// is the server's own.
const (
	serverWaits   = 8760 * time.Hour
	serverDefault = time.Hour
)

// keepFrequency keeps the maintenance frequency of the existing agents, unless a flag sets it. An apply without it
// would leave repositories to a server that waits for a year.
func (o *options) keepFrequency(ctx context.Context, client *cli.Client) error {
	if !o.apply || o.crdsOnly || !o.useNodeAgent || o.frequencyGiven || o.maintain > 0 {
		return nil
	}
	frequency, err := frequencyOfAgents(ctx, client)
	if err != nil || frequency == 0 {
		return err
	}
	o.agent.MaintenanceFrequency = frequency
	fmt.Fprintf(client.Out, "DaemonSet %s keeps %s=%s\n", api.DaemonSetName, deploy.MaintenanceFrequencyFlag, frequency)
	o.server.Args = o.serverArgs()
	return nil
}

// keepArgs keeps arguments of the existing agents for which this command has no flag. Only a patch can have set them.
func (o *options) keepArgs(ctx context.Context, client *cli.Client) error {
	if !o.apply || o.crdsOnly || !o.useNodeAgent {
		return nil
	}
	agents, err := client.Kube.AppsV1().DaemonSets(client.Namespace).Get(ctx, api.DaemonSetName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get DaemonSet %s: %w", api.DaemonSetName, err)
	}
	args, velero, err := deploy.AgentArgs(agents.Spec.Template)
	if err != nil || velero {
		return nil //nolint:nilerr // it is not Lateen's, and the installation refuses it
	}
	if o.agent.Args = deploy.OtherArgs(args); len(o.agent.Args) > 0 {
		fmt.Fprintf(client.Out, "DaemonSet %s keeps %s\n", api.DaemonSetName, strings.Join(o.agent.Args, " "))
	}
	return nil
}

// frequencyOfAgents returns the maintenance frequency of the agents in the cluster; 0 if they do not maintain repositories.
func frequencyOfAgents(ctx context.Context, client *cli.Client) (time.Duration, error) {
	agents, err := client.Kube.AppsV1().DaemonSets(client.Namespace).Get(ctx, api.DaemonSetName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("get DaemonSet %s: %w", api.DaemonSetName, err)
	}
	frequency, err := time.ParseDuration(startup.FlagOf(agents.Spec.Template.Spec.Containers, deploy.MaintenanceFrequencyFlag))
	if err != nil {
		return 0, nil //nolint:nilerr // no valid frequency is set
	}
	return max(frequency, 0), nil
}

// setFrequencies sets the frequency of each repository to a year for Velero's server while the agents maintain it. If
// a flag turns this off, it restores the frequency of the server. Without --apply, the flags do not change existing agents.
func (o *options) setFrequencies(ctx context.Context, client *cli.Client) error {
	if o.crdsOnly || o.agent.MaintenanceFrequency == 0 && !o.frequencyGiven && o.maintain == 0 {
		return nil
	}
	frequency, err := frequencyOfAgents(ctx, client)
	if err != nil {
		return err
	}
	repositories := client.Dynamic.Resource(schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: "backuprepositories"}).Namespace(client.Namespace)
	list, err := repositories.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list BackupRepositories: %w", err)
	}
	for _, repository := range list.Items {
		text, _, _ := unstructured.NestedString(repository.Object, "spec", "maintenanceFrequency")
		is, _ := time.ParseDuration(text)
		wanted := serverWaits
		if frequency == 0 {
			wanted = cmp.Or(o.maintain, serverDefault)
		}
		if is == wanted || wanted != serverWaits && is != serverWaits {
			continue
		}
		patch := fmt.Sprintf(`{"spec":{"maintenanceFrequency":%q}}`, wanted)
		if _, err := repositories.Patch(ctx, repository.GetName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: cli.FieldManager}); err != nil {
			return fmt.Errorf("patch BackupRepository %s: %w", repository.GetName(), err)
		}
		fmt.Fprintf(client.Out, "BackupRepository %s: maintenanceFrequency %s\n", repository.GetName(), wanted)
	}
	return nil
}
