package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
)

func newInstall() *cobra.Command {
	var options installOptions
	command := &cobra.Command{
		Use:   "install",
		Short: "Install Velero's server with Lateen as its node-agent",
		Args:  cobra.NoArgs,
		Example: `  lateen install --lateen-image registry.example/lateen:v1 --provider aws --plugins velero/velero-plugin-for-aws:v1.14.0 \
    --bucket backups --secret-file ./credentials --backup-location-config region=eu-central-1 --wait`,
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
			return runInstall(ctx, &options, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	options.addFlags(command.Flags())
	return command
}

func runInstall(ctx context.Context, o *installOptions, out, warnings io.Writer) error {
	if o.privileged {
		fmt.Fprintln(warnings, "Warning: --privileged-node-agent has no effect: agents open no devices; privilegedFsBackup in the node-agent ConfigMap makes movers privileged")
	}
	i, err := o.target(ctx, out, warnings)
	if err != nil {
		return err
	}
	definitions, rest, err := o.manifests()
	if err != nil {
		return err
	}
	if err := printManifests(out, o.output, slices.Concat(definitions, rest)); err != nil || o.dryRun {
		return err
	}
	return o.send(ctx, i, definitions, rest, warnings)
}

// target returns the cluster to install in, and adopts its settings that must stay; nil for a dry run.
func (o *installOptions) target(ctx context.Context, out, warnings io.Writer) (*installer, error) {
	if o.dryRun {
		return nil, nil
	}
	if o.output != "" {
		out = warnings // standard output is reserved for the objects
	}
	i, err := connect(o.cluster, out)
	if err != nil {
		return nil, err
	}
	i.apply = o.apply
	return i, o.keepFrequency(ctx, i)
}

// send installs the objects and, with --wait, waits for the workloads.
func (o *installOptions) send(ctx context.Context, i *installer, definitions, rest []*unstructured.Unstructured, warnings io.Writer) error {
	if !o.crdsOnly {
		if err := o.checkCluster(ctx, i.kube, warnings); err != nil {
			return err
		}
	}
	if err := i.installDefinitions(ctx, definitions); err != nil {
		return err
	}
	for _, manifest := range rest {
		if err := i.install(ctx, manifest); err != nil {
			return err
		}
	}
	if err := o.setFrequencies(ctx, i); err != nil {
		return err
	}
	if o.wait && !o.crdsOnly {
		return i.untilReady(ctx, o.daemonSets()...)
	}
	return nil
}

// daemonSets returns the names of the agents' DaemonSets.
func (o *installOptions) daemonSets() []string {
	switch {
	case !o.useNodeAgent:
		return nil
	case o.agent.Windows:
		return []string{deploy.DaemonSetName, deploy.WindowsDaemonSetName}
	}
	return []string{deploy.DaemonSetName}
}

// manifests returns the definitions, and the remaining objects.
func (o *installOptions) manifests() (definitions, rest []*unstructured.Unstructured, err error) {
	if definitions, err = toManifests(o.cluster.Namespace, deploy.Definitions()); err != nil || o.crdsOnly {
		return definitions, nil, err
	}
	objects := deploy.Server(o.server)
	if o.useNodeAgent {
		objects = append(objects, deploy.Objects(o.agent)...)
		objects = append(objects, deploy.CopyAccess(o.cluster.Namespace, o.copies)...)
	}
	rest, err = toManifests(o.cluster.Namespace, objects)
	return definitions, rest, err
}

func toManifests(namespace string, objects []runtime.Object) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, object := range objects {
		manifest, err := deploy.Manifest(object)
		if err != nil {
			return nil, err
		}
		labels := manifest.GetLabels()
		labels[api.LabelInstalled] = namespace
		manifest.SetLabels(labels)
		all = append(all, manifest)
	}
	return all, nil
}

// printManifests writes a List for kubectl, as velero does.
func printManifests(out io.Writer, format string, manifests []*unstructured.Unstructured) error {
	if format == "" {
		return nil
	}
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": manifests}
	text, err := json.MarshalIndent(list, "", "  ")
	if err == nil && format == "yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return fmt.Errorf("print objects: %w", err)
	}
	_, err = fmt.Fprintf(out, "%s\n", text)
	return err
}

// installer changes the cluster and prints what it does.
type installer struct {
	kube      kubernetes.Interface
	dynamic   dynamic.Interface
	namespace string // of Velero
	apply     bool   // server-side apply instead of create
	out       io.Writer
}

func connect(cluster config.Options, out io.Writer) (*installer, error) {
	rest, err := restConfig(cluster)
	if err != nil {
		return nil, err
	}
	rest.QPS = -1 // no limit: the requests are sequential
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	generic, err := dynamic.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return &installer{kube: kube, dynamic: generic, namespace: cluster.Namespace, out: out}, nil
}
