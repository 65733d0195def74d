package main

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

	"github.com/lateen-project/lateen/cmd/lateen/check"
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

// checkTimeout is the limit for all requests together.
const checkTimeout = 30 * time.Second

type checkOptions struct {
	file       string // "-" is stdin; empty: the cluster
	kind       string // kind of the file's content; empty: derived from its keys
	node       string
	nodeAgent  string // a ConfigMap; empty: the one of the agents
	repository string // likewise
	jobs       string // likewise
	viewOptions
}

func newCheck() *cobra.Command {
	var options checkOptions
	command := &cobra.Command{
		Use:   "check",
		Short: "Validate the ConfigMaps of the agents and show the effective configuration",
		Long: "Validate the ConfigMaps of the agents and show the effective configuration. The ConfigMaps are those that the agents\n" +
			"in a cluster name, or those in a file. Objects that they name are looked up in the cluster; for a file, only\n" +
			"with --node, --namespace, --kubeconfig or --context. Whether pods can have a priority class is tried with a dry run.\n\n" +
			"Exits with 0 if there is no problem, with 1 if there are problems, and with 2 if the check failed.",
		Example: "  lateen check -o json\n" +
			"  lateen check -f node-agent.yaml --node worker-1",
		Args: func(command *cobra.Command, args []string) error {
			return exitWith(exitCannotCheck, cobra.NoArgs(command, args))
		},
		RunE: func(command *cobra.Command, _ []string) error {
			count, err := options.run(command)
			switch {
			case err != nil:
				return exitWith(exitCannotCheck, err)
			case count > 0:
				return exitWith(exitProblems, errors.New(view.Counted(count, "problem")))
			}
			return nil
		},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exitWith(exitCannotCheck, err) })
	flags := command.Flags()
	flags.StringVarP(&options.file, "file", "f", "", "manifest of ConfigMaps, or only the configuration as JSON; - is standard input")
	flags.StringVar(&options.kind, "as", "", "kind of configuration in the file: "+kinds()+" (default: derived from its keys)")
	flags.StringVar(&options.node, "node", "", "show the limit of concurrent movers on this node")
	flags.StringVar(&options.nodeAgent, "node-agent-configmap", "", "ConfigMap to check (default: that of the agents' flag)")
	flags.StringVar(&options.repository, "backup-repository-configmap", "", "ConfigMap to check (default: that of the agents' flag)")
	flags.StringVar(&options.jobs, "repo-maintenance-job-configmap", "", "ConfigMap to check (default: that of the agents' flag, or else of the server's)")
	options.addFlags(command)
	return command
}

// run prints the reports and counts the Problems. Its error names what it could not read.
func (c *checkOptions) run(command *cobra.Command) (int, error) {
	documents, err := c.fromFile(command.InOrStdin())
	if err != nil {
		return 0, err
	}
	if c.file != "" && !c.online() {
		return c.report(command.OutOrStdout(), check.EvaluateAll(documents, nil, nil))
	}
	ctx, cancel := context.WithTimeout(command.Context(), checkTimeout)
	defer cancel()
	rest, err := c.cluster.Config()
	if err != nil {
		return 0, err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return 0, fmt.Errorf("create client: %w", err)
	}
	installation, err := check.Find(ctx, client, c.cluster.ViewNamespace())
	if err != nil {
		return 0, err
	}
	if c.file == "" {
		if documents, err = installation.Documents(ctx, client, c.nodeAgent, c.repository, c.jobs); err != nil {
			return 0, err
		}
	}
	velero, err := veleroVersion(ctx, rest, installation)
	if err != nil {
		return 0, err
	}
	server, err := kubernetesVersion(client)
	if err != nil {
		return 0, err
	}
	warn(command.ErrOrStderr(), velero, server)
	node, err := c.readNode(ctx, client)
	if err != nil {
		return 0, err
	}
	observed, unreadable := installation.Observe(ctx, client)
	var unreviewed error
	observed.CopyProblems, unreviewed = installation.CopyProblems(ctx, client, documents)
	output := check.EvaluateAll(documents, observed, node)
	output.Velero, output.Kubernetes = velero, server
	count, err := c.report(command.OutOrStdout(), output)
	return count, errors.Join(unreadable, unreviewed, err)
}

// online reports whether the objects named in a file are checked in the cluster.
func (c *checkOptions) online() bool {
	return cmp.Or(c.node, c.cluster.Namespace, c.cluster.Kubeconfig, c.cluster.Context) != ""
}

func (c *checkOptions) fromFile(stdin io.Reader) ([]check.Document, error) {
	switch {
	case c.file == "" && c.kind != "":
		return nil, errors.New("--as requires a file; name one with -f")
	case c.file == "":
		return nil, nil
	case cmp.Or(c.nodeAgent, c.repository, c.jobs) != "":
		return nil, errors.New("-f reads a file, not the cluster's ConfigMaps; remove -f or the names of ConfigMaps")
	case c.kind != "" && !slices.Contains(check.Kinds(), check.Kind(c.kind)):
		return nil, fmt.Errorf("--as %q is unknown: use %s", c.kind, kinds())
	case c.file == "-":
		text, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return check.ReadFile("standard input", text, check.Kind(c.kind))
	}
	text, err := os.ReadFile(c.file)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	return check.ReadFile(c.file, text, check.Kind(c.kind))
}

func (c *checkOptions) readNode(ctx context.Context, client kubernetes.Interface) (*corev1.Node, error) {
	if c.node == "" {
		return nil, nil
	}
	node, err := client.CoreV1().Nodes().Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", c.node, err)
	}
	return node, nil
}

// report prints the output and counts its Problems.
func (c *checkOptions) report(to io.Writer, output check.Output) (int, error) {
	return output.Problems(), c.print(to, output, output.Write)
}

func kinds() string {
	var names []string
	for _, kind := range check.Kinds() {
		names = append(names, string(kind))
	}
	return config.OneOf(names)
}

// veleroVersion reads the version of Velero and compares it with what Lateen was tested with; nil if no workload names
// an image.
func veleroVersion(ctx context.Context, connection *rest.Config, installation *check.Installation) (*check.Velero, error) {
	image := installation.MoverImage()
	if image == "" {
		return nil, nil
	}
	connection = rest.CopyConfig(connection)
	connection.QPS = -1 // no limit: the requests are sequential
	client, err := dynamic.NewForConfig(connection)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	fields, err := unknownFields(ctx, client)
	if err != nil {
		return nil, err
	}
	return &check.Velero{
		Image: image, TestedVersions: startup.TestedVersions(), Untested: startup.UntestedVelero(image), UnknownFields: append([]string{}, fields...),
	}, nil
}

// kubernetesVersion reads the version of the API server and compares it with what Lateen was tested with.
func kubernetesVersion(client kubernetes.Interface) (*check.Kubernetes, error) {
	found, err := client.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("get version of the API server: %w", err)
	}
	return &check.Kubernetes{
		Version: found.GitVersion, TestedVersions: startup.TestedKubernetes(), Untested: startup.UntestedKubernetes(found.GitVersion),
	}, nil
}

// warn prints what was not tested. None of it is a Problem.
func warn(to io.Writer, velero *check.Velero, server *check.Kubernetes) {
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
		fmt.Fprintf(to, "Warning: Velero's CustomResourceDefinitions have fields that Lateen does not know and ignores: %s\n", strings.Join(velero.UnknownFields, ", "))
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
