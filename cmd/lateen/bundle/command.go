package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
)

// timeout is the limit for the whole bundle.
const timeout = 10 * time.Minute

// Run runs a command of this program, and writes what it prints and what it warns of.
type Run func(ctx context.Context, out, warnings io.Writer, args ...string) error

// NewCommand returns `lateen bundle`. The user agent is that of its own requests; run runs the other commands.
func NewCommand(userAgent string, run Run) *cobra.Command {
	flags := cli.Flags{UserAgent: userAgent}
	var file string
	command := &cobra.Command{
		Use:   "bundle",
		Short: "Write what a report of a problem needs into one file",
		Long: "Write the output of status, check, version and explain, the objects of Velero's namespace, and the logs of its pods into one\n" +
			"tar.gz. Secrets are not read. In other objects, what looks like a credential is left out. Look at the file before you give\n" +
			"it away: names, command lines and logs may be confidential. An interrupted bundle has what was read until then.",
		Example: "  lateen bundle\n" +
			"  lateen bundle -n velero --file velero.tar.gz",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) (err error) {
			client, err := flags.Connect(command.OutOrStdout())
			if err != nil {
				return err
			}
			now := clock.RealClock{}.Now().UTC()
			name := cmp.Or(file, fmt.Sprintf("lateen-bundle-%s-%s.tar.gz", client.Namespace, now.Format("20060102-150405")))
			to, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return fmt.Errorf("create bundle: %w", err)
			}
			defer func() {
				if err = errors.Join(err, to.Close()); err != nil {
					err = errors.Join(err, os.Remove(name))
				} else {
					fmt.Fprintf(command.OutOrStdout(), "Wrote %s\n", name)
				}
			}()
			ctx, cancel := context.WithTimeout(command.Context(), timeout)
			defer cancel()
			same := []string{"--namespace=" + client.Namespace, "--kubeconfig=" + flags.Kubeconfig, "--context=" + flags.Context}
			return write(ctx, client, to, now, func(ctx context.Context, out, warnings io.Writer, args ...string) error {
				return run(ctx, out, warnings, append(args, same...)...)
			})
		},
	}
	flags.Add(command.Flags())
	command.Flags().StringVarP(&file, "file", "f", "", "file to write, which must not exist (default: lateen-bundle-NAMESPACE-TIME.tar.gz)")
	return command
}
