// Package install is `lateen install`: it creates or updates the objects of Velero's server and of Lateen's agents. It
// never deletes one.
package install

import (
	"context"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lateen-project/lateen/cmd/lateen/cluster"
	"github.com/lateen-project/lateen/deploy"
)

// NewCommand returns `lateen install`. The user agent is that of all its requests.
func NewCommand(userAgent string) *cobra.Command {
	options := options{cluster: cluster.Flags{UserAgent: userAgent}}
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
func (o *options) target(ctx context.Context, out, warnings io.Writer) (*cluster.Client, error) {
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
	return client, o.keepFrequency(ctx, client)
}

// send installs the objects and, with --wait, waits for the workloads.
func (o *options) send(ctx context.Context, client *cluster.Client, definitions, rest []*unstructured.Unstructured, warnings io.Writer) error {
	if !o.crdsOnly {
		if err := o.checkCluster(ctx, client.Kube, warnings); err != nil {
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
		return []string{deploy.DaemonSetName, deploy.WindowsDaemonSetName}
	}
	return []string{deploy.DaemonSetName}
}

// manifests returns the definitions, and the remaining objects.
func (o *options) manifests() (definitions, rest []*unstructured.Unstructured, err error) {
	if definitions, err = cluster.Manifests(o.cluster.Namespace, deploy.Definitions()); err != nil || o.crdsOnly {
		return definitions, nil, err
	}
	objects := deploy.Server(o.server)
	if o.useNodeAgent {
		o.agent.Inherited = o.server.Inherited()
		objects = append(objects, deploy.Objects(o.agent)...)
		objects = append(objects, deploy.CopyAccess(o.cluster.Namespace, o.agent.Copies)...)
	}
	rest, err = cluster.Manifests(o.cluster.Namespace, objects)
	return definitions, rest, err
}
