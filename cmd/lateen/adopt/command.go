package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/cluster"
	"github.com/lateen-project/lateen/deploy"
)

// NewCommand returns `lateen adopt`. The user agent is that of all its requests.
func NewCommand(userAgent string) *cobra.Command {
	options := options{cluster: cluster.Flags{UserAgent: userAgent}}
	command := &cobra.Command{
		Use:   "adopt",
		Short: "Replace Velero's node-agent with Lateen (--undo reverts)",
		Long: "Replace Velero's node-agent with Lateen in its DaemonSets, node-agent and node-agent-windows; --undo reverts.\n" +
			"Image, program and ServiceAccount become Lateen's, and probes are added; everything else is kept. Changes to an\n" +
			"adopted DaemonSet survive both. Lateen's agents use the maintenance ConfigMap that the server's Deployment names.",
		Example: "  lateen adopt --lateen-image registry.example/lateen:v1\n" +
			"  lateen adopt --lateen-image registry.example/lateen:v1 --dry-run -o yaml\n" +
			"  lateen adopt --undo",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if (options.image == "") != options.undo {
				return fmt.Errorf("set --lateen-image to the image of Lateen, or --undo to restore Velero's agents")
			}
			if err := errors.Join(options.validateCopies(), options.validateMovers(), options.validateOutput()); err != nil {
				return err
			}
			client, err := options.cluster.Connect(command.OutOrStdout())
			if err != nil {
				return err
			}
			client.Apply = true
			a := adoption{
				Client: client, options: options, warnings: command.ErrOrStderr(),
				prompt: cluster.Prompt{In: command.InOrStdin(), Out: command.OutOrStdout(), Force: options.force},
			}
			return a.run(command.Context())
		},
	}
	flags := command.Flags()
	options.cluster.Add(flags)
	flags.StringVar(&options.image, "lateen-image", "", "image of Lateen, for the agents")
	cluster.AddCopyFlags(flags, &options.copies)
	cluster.AddMoverFlags(flags, &options.movers, &options.podPolicy)
	flags.BoolVar(&options.undo, "undo", false, "restore Velero's agents")
	flags.BoolVar(&options.dryRun, "dry-run", false, "print the changes without applying them")
	options.output.AddFlag(flags, "print the objects that --dry-run leaves unapplied: json or yaml (default: a diff)")
	flags.BoolVar(&options.force, "force", false, "do not ask for confirmation")
	flags.DurationVar(&options.timeout, "timeout", 5*time.Minute, "how long --undo waits for Velero's agents, after confirmation")
	return command
}

func (o options) validateCopies() error {
	if o.undo && len(o.copies.Secrets)+len(o.copies.ConfigMaps)+len(o.copies.From) > 0 {
		return errors.New("--undo removes all RBAC rules for copies: remove --copy-secrets, --copy-configmaps and --copy-from")
	}
	return cluster.ValidateCopies(o.copies)
}

func (o options) validateOutput() error {
	if o.output != "" && (o.undo || !o.dryRun) {
		return errors.New("-o prints the objects of an adoption instead of applying them: add --dry-run, and no --undo")
	}
	return nil
}

func (a *adoption) run(ctx context.Context) error {
	changes, err := a.plan(ctx)
	if err != nil {
		return err
	}
	a.warnOfTransfers(ctx)
	if a.output != "" {
		return a.print(changes)
	}
	for _, change := range changes {
		if err := a.show(change); err != nil {
			return err
		}
	}
	if a.maintenance != "" {
		fmt.Fprintln(a.Out, a.maintenance)
	}
	for _, object := range a.restricts {
		if manifest, err := deploy.Manifest(object); err == nil && !a.undo {
			fmt.Fprintf(a.Out, "%s %s is applied.\n", manifest.GetKind(), manifest.GetName())
		}
	}
	if a.dryRun {
		return nil
	}
	if err := a.prompt.Confirm(ctx, "Apply this change? Running movers are not interrupted."); err != nil {
		return fmt.Errorf("adopt agents of namespace %s: %w, nothing changed", a.Namespace, err)
	}
	act := a.apply
	if a.undo {
		act = a.revert
	}
	if err := act(ctx, changes); err != nil {
		return fmt.Errorf("%w\nrun the same command again: it does what is left", err)
	}
	return nil
}

// plan computes the changes of the agents' DaemonSets for Linux and Windows nodes.
func (a *adoption) plan(ctx context.Context) ([]replacement, error) {
	found, err := a.agents(ctx)
	if err != nil {
		return nil, err
	}
	if a.restricts, err = a.restrict(ctx, found[0]); err != nil {
		return nil, err
	}
	var changes []replacement
	for _, agents := range found {
		after := agents.DeepCopy()
		change := a.adopt
		if a.undo {
			change = a.restore
		}
		if err := change(ctx, after); err != nil {
			return nil, fmt.Errorf("adopt DaemonSet %s/%s: %w", a.Namespace, agents.GetName(), err)
		}
		changes = append(changes, replacement{before: agents, after: after})
	}
	if !a.undo {
		a.warnOfRestic(ctx)
	}
	return changes, nil
}

// show prints the change of a DaemonSet as a unified diff.
func (a *adoption) show(change replacement) error {
	var texts [2][]string
	for side, object := range []*unstructured.Unstructured{change.before, change.after} {
		template, _, err := unstructured.NestedMap(object.Object, "spec", "template")
		if err != nil {
			return err
		}
		text, err := yaml.Marshal(template)
		if err != nil {
			return fmt.Errorf("print template: %w", err)
		}
		texts[side] = slices.Collect(strings.Lines(string(text)))
	}
	fmt.Fprintf(a.Out, "DaemonSet %s/%s, spec.template:\n", a.Namespace, change.before.GetName())
	return difflib.WriteUnifiedDiff(a.Out, difflib.UnifiedDiff{A: texts[0], B: texts[1], Context: 3})
}
