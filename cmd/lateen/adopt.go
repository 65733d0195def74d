package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
)

// adoptedAnnotation is on a DaemonSet that was adopted. It keeps the pod template that it had, as JSON.
const adoptedAnnotation = "lateen.dev/adopted-from"

// adoptOptions are the flags of `lateen adopt`.
type adoptOptions struct {
	cluster             config.Options // its Namespace, Kubeconfig and Kubecontext alone
	image               string
	undo, force, dryRun bool
	timeout             time.Duration
}

func newAdopt() *cobra.Command {
	var options adoptOptions
	command := &cobra.Command{
		Use:   "adopt",
		Short: "Put Lateen in the place of a running Velero's node-agent, or that one back",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if (options.image == "") != options.undo {
				return fmt.Errorf("either --lateen-image or --undo is needed: name the image of Lateen, or have Velero's agents put back")
			}
			i, err := connect(options.cluster, command.OutOrStdout())
			if err != nil {
				return err
			}
			i.apply = true
			if options.force {
				command.SetIn(strings.NewReader("y\n"))
			}
			a := adoption{installer: i, adoptOptions: options, warnings: command.ErrOrStderr()}
			return a.run(command.Context(), command.InOrStdin())
		},
	}
	flags := command.Flags()
	addClusterFlags(flags, &options.cluster)
	flags.StringVar(&options.image, "lateen-image", "", "image of Lateen, for the agents")
	flags.BoolVar(&options.undo, "undo", false, "put Velero's agents back")
	flags.BoolVar(&options.dryRun, "dry-run", false, "show what would change, and change nothing")
	flags.BoolVar(&options.force, "force", false, "do not ask")
	flags.DurationVar(&options.timeout, "timeout", 5*time.Minute, "how long --undo may wait for Velero's agents once it was confirmed")
	return command
}

// adoption is one run of the command.
type adoption struct {
	*installer
	adoptOptions
	warnings io.Writer
}

func daemonSets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
}

func (a *adoption) run(ctx context.Context, answers io.Reader) error {
	agents, err := a.dynamic.Resource(daemonSets()).Namespace(a.namespace).Get(ctx, deploy.DaemonSetName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the DaemonSet of Velero's agents: %w", err)
	}
	if agents.GetLabels()["app.kubernetes.io/part-of"] == "lateen" {
		return fmt.Errorf("adopt DaemonSet %s/%s: it is Lateen's own; lateen install --apply changes it", a.namespace, agents.GetName())
	}
	changed := agents.DeepCopy()
	if a.undo {
		err = putBack(changed)
		a.warnOfAccepted(ctx)
	} else {
		err = a.takeOver(ctx, changed)
	}
	if err != nil {
		return fmt.Errorf("adopt DaemonSet %s/%s: %w", a.namespace, agents.GetName(), err)
	}
	if err := a.show(agents, changed); err != nil || a.dryRun {
		return err
	}
	fmt.Fprint(a.out, "Change it so? Movers that run go on. [y/N] ")
	answer, _ := bufio.NewReader(answers).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return fmt.Errorf("adopt DaemonSet %s/%s: not confirmed, so nothing was changed", a.namespace, agents.GetName())
	}
	fmt.Fprintln(a.out)
	if a.undo {
		return a.retreat(ctx, changed)
	}
	return a.advance(ctx, changed)
}

// takeOver makes Lateen's agents of Velero's. Those that were adopted before are made anew of what they were, unless
// somebody has put Velero's back, as Helm does.
func (a *adoption) takeOver(ctx context.Context, agents *unstructured.Unstructured) error {
	if _, adopted := agents.GetAnnotations()[adoptedAnnotation]; adopted && runAs(agents) == deploy.ServiceAccountName {
		if err := putBack(agents); err != nil {
			return err
		}
	}
	was, _, err := unstructured.NestedMap(agents.Object, "spec", "template")
	if err != nil {
		return err
	}
	kept, err := json.Marshal(was)
	if err != nil {
		return err
	}
	var velero appsv1.DaemonSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(agents.Object, &velero); err != nil {
		return err
	}
	wanted := deploy.Adoption{Image: a.image}
	if err := understood(velero.Spec.Template); err != nil {
		return err
	}
	if wanted.Args, err = a.identity(ctx, velero.Spec.Template.Spec); err != nil {
		return err
	}
	template, err := deploy.Adopt(velero.Spec.Template, wanted)
	if err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&template)
	if err != nil {
		return err
	}
	annotations := agents.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[adoptedAnnotation] = string(kept)
	agents.SetAnnotations(annotations)
	a.warnOfRestic(ctx)
	if agents.GetLabels()["app.kubernetes.io/managed-by"] == "Helm" {
		fmt.Fprintln(a.warnings, "Warning: the DaemonSet is Helm's: helm upgrade puts Velero's agents back in its next run, and lateen adopt is to be run again after that")
	}
	return unstructured.SetNestedMap(agents.Object, fields, "spec", "template")
}

// understood finds arguments that Lateen does not have, before its agents would.
func understood(template corev1.PodTemplateSpec) error {
	if len(template.Spec.Containers) != 1 {
		return nil // package deploy has words for that
	}
	args, err := deploy.AgentArgs(template.Spec.Containers[0])
	if err != nil {
		return err
	}
	var options config.Options
	flags := pflag.NewFlagSet("node-agent", pflag.ContinueOnError)
	flags.Usage = func() {}
	options.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("read its arguments: %w; take it out first, lateen node-agent --help has all that there are", err)
	}
	return nil
}

// identity is what says which image and ServiceAccount movers have. Agents take both from Velero's Deployment; where
// that has another name they are told what Velero's agents had.
func (a *adoption) identity(ctx context.Context, velero corev1.PodSpec) ([]string, error) {
	_, err := a.kube.AppsV1().Deployments(a.namespace).Get(ctx, deploy.VeleroDeployment, metav1.GetOptions{})
	if err == nil {
		return nil, nil
	}
	if !apierrors.IsNotFound(err) || len(velero.Containers) == 0 {
		return nil, err
	}
	return []string{"--mover-image=" + velero.Containers[0].Image, "--mover-service-account=" + velero.ServiceAccountName}, nil
}

// warnOfRestic tells of repositories that only Velero's agents can restore from.
func (a *adoption) warnOfRestic(ctx context.Context) {
	repositories := a.dynamic.Resource(schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: "backuprepositories"})
	list, err := repositories.Namespace(a.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintf(a.warnings, "Warning: cannot tell whether there are restic repositories: %v\n", err)
		return
	}
	for _, repository := range list.Items {
		if kind, _, _ := unstructured.NestedString(repository.Object, "spec", "repositoryType"); kind == "restic" {
			fmt.Fprintf(a.warnings, "Warning: BackupRepository %s is restic's: only Velero's agents restore from it (lateen adopt --undo puts them back)\n", repository.GetName())
		}
	}
}

// warnOfAccepted tells of transfers whose movers may come to run while no agent watches. Velero's do not look for that
// when they start, and such a transfer ends with its timeout (velero-protocol 1.6).
func (a *adoption) warnOfAccepted(ctx context.Context) {
	count := 0
	for _, each := range allFinalized() {
		if each.server {
			continue
		}
		list, err := a.dynamic.Resource(each.GroupVersionResource).Namespace(a.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			fmt.Fprintf(a.warnings, "Warning: cannot tell whether %s are being prepared: %v\n", each.Resource, err)
			return
		}
		for _, transfer := range list.Items {
			if phase, _, _ := unstructured.NestedString(transfer.Object, "status", "phase"); phase == "Accepted" {
				count++
			}
		}
	}
	if count > 0 {
		fmt.Fprintf(a.warnings, "Warning: %d transfers are Accepted, and Velero's agents do not see that a mover came to run before they did: such a transfer waits until its preparation times out (lateen status says when there is none)\n", count)
	}
}

// show prints the change of the DaemonSet as a diff.
func (a *adoption) show(before, after *unstructured.Unstructured) error {
	var texts [2][]string
	for side, object := range []*unstructured.Unstructured{before, after} {
		template, _, err := unstructured.NestedMap(object.Object, "spec", "template")
		if err != nil {
			return err
		}
		text, err := yaml.Marshal(template)
		if err != nil {
			return fmt.Errorf("print template: %w", err)
		}
		texts[side] = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	}
	fmt.Fprintf(a.out, "DaemonSet %s/%s, spec.template:\n", a.namespace, before.GetName())
	for _, line := range diff(texts[0], texts[1]) {
		fmt.Fprintln(a.out, line)
	}
	return nil
}
