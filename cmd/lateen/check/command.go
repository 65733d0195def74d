package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/lateen-project/lateen/cmd/lateen/check/preflight"
	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/deploy"
)

// Exit codes of `lateen check`.
const (
	exitProblems    = 1
	exitCannotCheck = 2
)

// timeout is the limit for all requests together.
const timeout = 2 * time.Minute

type options struct {
	file       string // "-" is stdin; empty: the cluster
	kind       string // kind of the file's content; empty: derived from its keys
	node       string
	nodeAgent  string // a ConfigMap; empty: the one of the agents
	repository string // likewise
	jobs       string // likewise
	before     bool   // Lateen does not run yet
	cli.View
}

// NewCommand returns `lateen check`. The user agent is that of all its requests.
func NewCommand(userAgent string) *cobra.Command {
	var options options
	options.UserAgent = userAgent
	command := &cobra.Command{
		Use:   "check",
		Short: "Check the cluster and the ConfigMaps of the agents, and show the effective configuration",
		Long: "Check whether the cluster has what agents and movers need. Validate the ConfigMaps of the agents and show the effective\n" +
			"configuration. The ConfigMaps are those that the agents in a cluster name, or those in a file. Objects that they name\n" +
			"are looked up in the cluster; for a file, only with --node, --namespace, --kubeconfig or --context. Whether movers can\n" +
			"be created is tried with a dry run. Use --pre before lateen adopt or lateen install.\n\n" +
			"Exits with 0 if there is no problem, with 1 if there are problems, and with 2 if the check failed.",
		Example: "  lateen check --pre\n" +
			"  lateen check -o json\n" +
			"  lateen check -f node-agent.yaml --node worker-1",
		Args: func(command *cobra.Command, args []string) error {
			return cli.ExitWith(exitCannotCheck, cobra.NoArgs(command, args))
		},
		RunE: func(command *cobra.Command, _ []string) error {
			count, err := options.run(command)
			switch {
			case err != nil:
				return cli.ExitWith(exitCannotCheck, err)
			case count > 0:
				return cli.ExitWith(exitProblems, errors.New(view.Counted(count, "problem")))
			}
			return nil
		},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.ExitWith(exitCannotCheck, err) })
	flags := command.Flags()
	flags.StringVarP(&options.file, "file", "f", "", "manifest of ConfigMaps, or only the configuration as JSON; - is standard input")
	flags.StringVar(&options.kind, "as", "", "kind of configuration in the file: "+kinds()+" (default: derived from its keys)")
	flags.BoolVar(&options.before, "pre", false, "check before Lateen runs: Velero's agents, or none, are no problem")
	flags.StringVar(&options.node, "node", "", "show the limit of concurrent movers on this node")
	flags.StringVar(&options.nodeAgent, "node-agent-configmap", "", "ConfigMap to check (default: that of the agents' flag)")
	flags.StringVar(&options.repository, "backup-repository-configmap", "", "ConfigMap to check (default: that of the agents' flag)")
	flags.StringVar(&options.jobs, "repo-maintenance-job-configmap", "", "ConfigMap to check (default: that of the agents' flag, or else of the server's)")
	options.AddFlags(flags)
	return command
}

// run prints the reports and counts the Problems. Its error names what it could not read.
func (o *options) run(command *cobra.Command) (int, error) {
	documents, err := o.fromFile(command.InOrStdin())
	if err != nil {
		return 0, err
	}
	if o.file != "" && !online(command) {
		return o.report(command.OutOrStdout(), EvaluateAll(documents, nil, nil))
	}
	connected, err := o.Connect(io.Discard)
	if err != nil {
		return 0, err
	}
	return o.inCluster(command, documents, connected.Kube, connected.Dynamic)
}

// inCluster also checks the cluster, and what the documents name in it. Without a file, the documents are those of the cluster.
func (o *options) inCluster(command *cobra.Command, documents []Document, client kubernetes.Interface, generic dynamic.Interface) (int, error) {
	ctx, cancel := context.WithTimeout(command.Context(), timeout)
	defer cancel()
	installation, err := Find(ctx, client, o.Namespace)
	if err != nil {
		return 0, err
	}
	if o.file == "" && (installation.Agents != nil || cmp.Or(o.nodeAgent, o.repository, o.jobs) != "") {
		if documents, err = installation.Documents(ctx, client, o.nodeAgent, o.repository, o.jobs); err != nil {
			return 0, err
		}
	}
	velero, err := veleroVersion(ctx, generic, installation)
	if err != nil {
		return 0, err
	}
	server, err := kubernetesVersion(client)
	if err != nil {
		return 0, err
	}
	warn(command.ErrOrStderr(), velero, server)
	node, err := o.readNode(ctx, client)
	if err != nil {
		return 0, err
	}
	observed, unreadable := installation.Observe(ctx, client)
	var unreviewed error
	observed.CopyProblems, unreviewed = installation.CopyProblems(ctx, client, documents)
	output := EvaluateAll(documents, observed, node)
	output.Velero, output.Kubernetes = velero, server
	var unchecked error
	if o.file == "" {
		checked := installation.preflight(client, generic, documents)
		checked.As, checked.Before = o.as, o.before
		output.Checks = checked.Run(ctx)
		unchecked = errorOf(output.Checks)
	}
	count, err := o.report(command.OutOrStdout(), output)
	return count, errors.Join(unreadable, unreviewed, unchecked, err)
}

// as returns a client with the identity of a ServiceAccount in Velero's namespace.
func (o *options) as(account string) (kubernetes.Interface, error) {
	connection, err := o.Config()
	if err != nil {
		return nil, err
	}
	user, groups := preflight.Identity(o.Namespace, account)
	connection.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	client, err := kubernetes.NewForConfig(connection)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return client, nil
}

// errorOf returns the error with the checks that were not possible; their findings say why.
func errorOf(findings []preflight.Finding) error {
	var names []string
	for _, one := range findings {
		if one.Status == preflight.Unknown {
			names = append(names, one.Check)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return errors.New("could not check " + strings.Join(names, ", "))
}

// online reports whether the objects named in a file are checked in the cluster.
func online(command *cobra.Command) bool {
	return slices.ContainsFunc([]string{"node", "namespace", "kubeconfig", "context"}, command.Flags().Changed)
}

func (o *options) fromFile(stdin io.Reader) ([]Document, error) {
	switch {
	case o.file != "" && o.before:
		return nil, errors.New("--pre checks a cluster; remove -f")
	case o.file == "" && o.kind != "":
		return nil, errors.New("--as requires a file; name one with -f")
	case o.file == "":
		return nil, nil
	case cmp.Or(o.nodeAgent, o.repository, o.jobs) != "":
		return nil, errors.New("-f reads a file, not the cluster's ConfigMaps; remove -f or the names of ConfigMaps")
	case o.kind != "" && !slices.Contains(Kinds(), Kind(o.kind)):
		return nil, fmt.Errorf("--as %q is unknown: use %s", o.kind, kinds())
	case o.file == "-":
		text, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return ReadFile("standard input", text, Kind(o.kind))
	}
	text, err := os.ReadFile(o.file)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	return ReadFile(o.file, text, Kind(o.kind))
}

func (o *options) readNode(ctx context.Context, client kubernetes.Interface) (*corev1.Node, error) {
	if o.node == "" {
		return nil, nil
	}
	node, err := client.CoreV1().Nodes().Get(ctx, o.node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", o.node, err)
	}
	return node, nil
}

// report prints the output and counts its Problems.
func (o *options) report(to io.Writer, output Output) (int, error) {
	return output.Problems(), o.Print(to, output, output.Write)
}

func kinds() string {
	var names []string
	for _, kind := range Kinds() {
		names = append(names, string(kind))
	}
	return config.OneOf(names)
}

// veleroVersion reads the version of Velero and compares it with what Lateen was tested with; nil if no workload names
// an image.
func veleroVersion(ctx context.Context, client dynamic.Interface, installation *Installation) (*Velero, error) {
	image := installation.MoverImage()
	if image == "" {
		return nil, nil
	}
	fields, err := unknownFields(ctx, client)
	if err != nil {
		return nil, err
	}
	return &Velero{
		Image: image, TestedVersions: startup.TestedVersions(), Untested: startup.UntestedVelero(image), UnknownFields: append([]string{}, fields...),
	}, nil
}

// kubernetesVersion reads the version of the API server and compares it with what Lateen was tested with.
func kubernetesVersion(client kubernetes.Interface) (*Kubernetes, error) {
	found, err := client.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("get version of the API server: %w", err)
	}
	return &Kubernetes{
		Version: found.GitVersion, TestedVersions: startup.TestedKubernetes(), Untested: startup.UntestedKubernetes(found.GitVersion),
	}, nil
}

// warn prints what was not tested. None of it is a Problem.
func warn(to io.Writer, velero *Velero, server *Kubernetes) {
	untested := []string{server.Untested}
	if velero != nil {
		untested = append(untested, velero.Untested)
	}
	for _, each := range untested {
		if each != "" {
			fmt.Fprintf(to, "Warning: %s; use a newer Lateen, or test a backup and a restore first\n", each)
		}
	}
	if velero != nil && len(velero.UnknownFields) > 0 {
		fmt.Fprintf(to, "Warning: Velero's CustomResourceDefinitions have fields that Lateen does not know: %s. "+
			"Transfers that set one in their spec fail, unless only Velero's server and movers read it\n", strings.Join(velero.UnknownFields, ", "))
	}
}

// unknownFields lists the fields of Velero's definitions in the cluster that are not in Lateen's version of them, by kind.
// It ignores missing and forbidden definitions.
func unknownFields(ctx context.Context, client dynamic.Interface) ([]string, error) {
	var all []string
	for _, object := range deploy.Definitions() {
		ours, err := deploy.Manifest(object)
		if err != nil {
			return nil, err
		}
		theirs, err := client.Resource(cli.Definitions()).Get(ctx, ours.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get definition %s: %w", ours.GetName(), err)
		}
		kind, _, _ := unstructured.NestedString(ours.Object, "spec", "names", "kind")
		for _, field := range cli.NewerFields(theirs, ours) {
			all = append(all, kind+" "+field)
		}
	}
	return all, nil
}
