package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/api"
)

// version is the release or commit that the binary was built from.
var version = "unknown" // set by the linker

// userAgent names the program and its version in requests to the API server.
func userAgent() string { return "lateen/" + version }

// readTimeout is the limit for all requests together.
const readTimeout = 30 * time.Second

// versions is what `lateen version` prints.
type versions struct {
	Client string          `json:"client"`
	Agents []agentsVersion `json:"agents"`           // a DaemonSet each; empty if there is none, or the cluster was not read
	Velero string          `json:"velero,omitempty"` // image of the server; likewise
}

// agentsVersion is a DaemonSet of agents, of Lateen or of Velero.
type agentsVersion struct {
	Name    string `json:"name"`
	Image   string `json:"image"`
	Ready   int32  `json:"ready"`
	Desired int32  `json:"desired"`
	Updated int32  `json:"updated"` // agents that run this image; fewer than desired during a rollout
}

func newVersion() *cobra.Command {
	at := cli.View{Flags: cli.Flags{UserAgent: userAgent()}}
	var client bool
	command := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this program, of the agents and of Velero",
		Example: "  lateen version --client\n" +
			"  lateen version -n velero -o yaml",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			found := versions{Client: version, Agents: []agentsVersion{}}
			var unread error
			if !client {
				unread = found.read(command.Context(), &at.Flags)
			}
			printed := at.Print(command.OutOrStdout(), found, func(to io.Writer) error { return found.write(to, client || unread != nil) })
			return errors.Join(unread, printed)
		},
	}
	at.AddFlags(command.Flags())
	command.Flags().BoolVar(&client, "client", false, "show only the version of this program, without a request to the cluster")
	return command
}

// read reads the versions in the cluster that the flags select.
func (v *versions) read(ctx context.Context, from *cli.Flags) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	client, err := from.Connect(io.Discard)
	if err != nil {
		return err
	}
	kube, namespace := client.Kube, client.Namespace
	for _, name := range []string{api.DaemonSetName, api.WindowsDaemonSetName} {
		agents, err := kube.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("get DaemonSet %s: %w", name, err)
		default:
			v.Agents = append(v.Agents, versionOf(agents))
		}
	}
	server, err := startup.ReadServer(ctx, kube, namespace, "")
	if server != nil {
		v.Velero = startup.ServerImage(server.Spec.Template.Spec)
	}
	return err
}

func versionOf(agents *appsv1.DaemonSet) agentsVersion {
	return agentsVersion{
		Name: agents.Name, Image: startup.ServerImage(agents.Spec.Template.Spec),
		Ready: agents.Status.NumberReady, Desired: agents.Status.DesiredNumberScheduled, Updated: agents.Status.UpdatedNumberScheduled,
	}
}

func (v *versions) write(to io.Writer, client bool) error {
	fmt.Fprintf(to, "Client: %s\n", v.Client)
	if client {
		return nil
	}
	for _, agents := range v.Agents {
		fmt.Fprintf(to, "Agents: %s, DaemonSet %s: %d of %d ready, %d updated\n", agents.Image, agents.Name, agents.Ready, agents.Desired, agents.Updated)
	}
	if len(v.Agents) == 0 {
		fmt.Fprintln(to, "Agents: none")
	}
	_, err := fmt.Fprintf(to, "Velero: %s\n", cmp.Or(v.Velero, "none"))
	return err
}
