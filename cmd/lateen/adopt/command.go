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
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/check/preflight"
	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
)

// NewCommand returns `lateen adopt`. The user agent is that of all its requests.
func NewCommand(userAgent string) *cobra.Command {
	options := options{cluster: cli.Flags{UserAgent: userAgent}}
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
				prompt: cli.Prompt{In: command.InOrStdin(), Out: command.OutOrStdout(), Force: options.force},
			}
			return a.run(command.Context())
		},
	}
	flags := command.Flags()
	options.cluster.Add(flags)
	flags.StringVar(&options.image, "lateen-image", "", "image of Lateen, for the agents")
	cli.AddCopyFlags(flags, &options.copies)
	cli.AddMoverFlags(flags, &options.movers, &options.podPolicy)
	flags.BoolVar(&options.undo, "undo", false, "restore Velero's agents")
	flags.BoolVar(&options.dryRun, "dry-run", false, "print the changes without applying them")
	options.output.AddFlag(flags, "print the objects that --dry-run leaves unapplied: json or yaml (default: a diff)")
	flags.BoolVar(&options.force, "force", false, "do not ask for confirmation")
	flags.DurationVar(&options.timeout, "timeout", 5*time.Minute, "how long to wait for the new agents, and before --undo for restored volumes, after confirmation")
	return command
}

func (o options) validateCopies() error {
	if o.undo && len(o.copies.Secrets)+len(o.copies.ConfigMaps)+len(o.copies.From) > 0 {
		return errors.New("--undo removes all RBAC rules for copies: remove --copy-secrets, --copy-configmaps and --copy-from")
	}
	return cli.ValidateCopies(o.copies)
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
	if a.server, err = startup.ReadServer(ctx, a.Kube, a.Namespace, ""); err != nil {
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
	if a.undo {
		return changes, nil
	}
	if err := a.rejectOld(ctx); err != nil {
		return nil, err
	}
	a.warnOfRestic(ctx)
	if a.server != nil {
		if untested := startup.UntestedVelero(startup.ServerImage(a.server.Spec.Template.Spec)); untested != "" {
			fmt.Fprintf(a.warnings, "Warning: %s\n", untested)
		}
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

// print writes the objects that an adoption applies, for kubectl apply or a GitOps repository.
func (a *adoption) print(changes []replacement) error {
	objects, err := a.rbac()
	if err != nil {
		return err
	}
	for _, change := range changes {
		agents, err := manifest(change.after)
		if err != nil {
			return fmt.Errorf("print DaemonSet %s: %w", change.after.GetName(), err)
		}
		objects = append(objects, agents)
	}
	return a.output.PrintManifests(a.Out, objects)
}

// manifest returns an adopted DaemonSet without what the API server sets. It names the program: an apply keeps
// Velero's command if there is none.
func manifest(agents *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	template, err := readTemplate(agents)
	if err != nil {
		return nil, err
	}
	named := *template.DeepCopy()
	named.Spec.Containers[0].Command = []string{"/lateen"}
	if agents.GetName() == api.WindowsDaemonSetName {
		named.Spec.Containers[0].Command = []string{"/lateen.exe"}
	}
	manifest := &unstructured.Unstructured{Object: map[string]any{"spec": agents.DeepCopy().Object["spec"]}}
	manifest.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("DaemonSet"))
	manifest.SetName(agents.GetName())
	manifest.SetNamespace(agents.GetNamespace())
	manifest.SetLabels(agents.GetLabels())
	manifest.SetAnnotations(agents.GetAnnotations())
	removeAnnotations(manifest, appsv1.DeprecatedTemplateGeneration)
	return manifest, changeTemplate(manifest, template, named)
}

// warnOf prints the consequences of an adoption for the user.
func (a *adoption) warnOf(agents *unstructured.Unstructured) {
	if agents.GetLabels()["app.kubernetes.io/managed-by"] == "Helm" {
		fmt.Fprintf(a.warnings, "Warning: DaemonSet %s is managed by Helm: the next helm upgrade restores Velero's agents, with server-side apply only by --force-conflicts; run lateen adopt again after it\n", agents.GetName())
	}
	if agents.GetName() == api.WindowsDaemonSetName {
		fmt.Fprintf(a.warnings, "Warning: DaemonSet %s is adopted too: --lateen-image must also support Windows nodes\n", agents.GetName())
	}
}

// rejectOld fails if Velero's definitions lack phases that Lateen's agents set: no transfer would go on.
func (a *adoption) rejectOld(ctx context.Context) error {
	_, old, err := preflight.Definitions(ctx, a.Dynamic)
	if err != nil {
		fmt.Fprintf(a.warnings, "Warning: cannot check Velero's definitions: %v\n", err)
	}
	if len(old) > 0 {
		return fmt.Errorf("adopt agents of namespace %s: definitions are older than those of Velero 1.17: %s: upgrade Velero first", a.Namespace, strings.Join(old, ", "))
	}
	return nil
}

// warnOfRestic warns of repositories that only Velero's agents can restore from.
func (a *adoption) warnOfRestic(ctx context.Context) {
	repositories := a.Dynamic.Resource(schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: "backuprepositories"})
	list, err := repositories.Namespace(a.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintf(a.warnings, "Warning: cannot check for restic repositories: %v\n", err)
		return
	}
	for _, repository := range list.Items {
		if kind, _, _ := unstructured.NestedString(repository.Object, "spec", "repositoryType"); kind == "restic" {
			fmt.Fprintf(a.warnings, "Warning: BackupRepository %s has type restic: only Velero's agents can restore from it (lateen adopt --undo restores them)\n", repository.GetName())
		}
	}
}

// Effects of the exchange of agents on transfers. Velero's agents ignore movers that started to run
// before them (velero-protocol 1.6).
const (
	newMeans            = "a New transfer may be accepted by an agent of Velero or of Lateen while both run"
	acceptedAtAdoption  = "an Accepted transfer belongs to Velero's agent until that agent stops, then Lateen continues it"
	acceptedAtUndo      = "an Accepted transfer whose mover runs when Velero's agents are ready is marked as Prepared, any other one fails after their prepare timeout"
	inProgressAtUndo    = "if its mover ends while the agent of its node is replaced, Velero's agent may cancel it, and the restored volume has no claim"
	transfersMayBeAwait = "lateen status shows whether there are any left"
)

// warnOfTransfers counts the transfers that are neither prepared nor terminal, and prints the effect of the exchange
// on them.
func (a *adoption) warnOfTransfers(ctx context.Context) {
	var counts []string
	accepted := false
	for _, kind := range api.Kinds() {
		resource := kind.GVR()
		list, err := a.Dynamic.Resource(resource).Namespace(a.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			fmt.Fprintf(a.warnings, "Warning: cannot check for %s that are being prepared: %v\n", resource.Resource, err)
			continue
		}
		phases := map[string]int{}
		for _, transfer := range list.Items {
			phases[cli.PhaseOf(&transfer)]++
		}
		if count := phases["InProgress"]; a.undo && kind.Name == api.DataDownload().Name && count > 0 {
			fmt.Fprintf(a.warnings, "Warning: %d %s InProgress: %s (%s)\n", count, resource.Resource, inProgressAtUndo, transfersMayBeAwait)
		}
		if count := phases[""] + phases["New"]; count > 0 {
			counts = append(counts, fmt.Sprintf("%d %s New", count, resource.Resource))
		}
		if count := phases["Accepted"]; count > 0 {
			counts = append(counts, fmt.Sprintf("%d %s Accepted", count, resource.Resource))
			accepted = true
		}
	}
	if len(counts) == 0 {
		return
	}
	means := []string{newMeans}
	switch {
	case accepted && a.undo:
		means = append(means, acceptedAtUndo)
	case accepted:
		means = append(means, acceptedAtAdoption)
	}
	fmt.Fprintf(a.warnings, "Warning: transfers without a mover: %s: %s (%s)\n", strings.Join(counts, ", "), strings.Join(means, "; "), transfersMayBeAwait)
}
