package verify

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
)

// NewCommand returns `lateen verify`. The user agent is that of all its requests.
func NewCommand(userAgent string) *cobra.Command {
	var at cli.View
	at.UserAgent = userAgent
	var backup string
	var how options
	command := &cobra.Command{
		Use:   "verify --backup NAME",
		Short: "Restore the volumes of a backup into scratch claims, and delete them",
		Long: "Verify that the data of a backup can be read. The command shows the volumes of the backup and asks. Then it restores each one\n" +
			"with a DataDownload into a scratch claim in Velero's namespace, and deletes that with its volume. The mover reads all data of\n" +
			"a volume from the backup storage, and checks its hashes. The command fails if a volume is not verified, for whatever reason.",
		Example: "  lateen verify --backup nightly-20261126 --dry-run\n" +
			"  lateen verify --backup nightly-20261126 --parallel 4 --storage-class cheap --force -o json",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if backup == "" {
				return errors.New("name a Backup with --backup")
			}
			if how.parallel < 1 {
				return fmt.Errorf("--parallel=%d: use 1 or more", how.parallel)
			}
			return cli.Act(&at, command, &how.prompt, func(client *cli.Client) (*Output, error) {
				return (&verification{Client: client, backup: backup}).run(command.Context(), how)
			})
		},
	}
	at.AddFlags(command.Flags())
	command.Flags().StringVar(&backup, "backup", "", "verify this Backup")
	command.Flags().BoolVar(&how.dryRun, "dry-run", false, "show the volumes and restore nothing")
	command.Flags().BoolVar(&how.prompt.Force, "force", false, "do not ask for confirmation")
	command.Flags().IntVar(&how.parallel, "parallel", 2, "restores at the same time")
	command.Flags().StringVar(&how.class, "storage-class", "", "storage class of the scratch claims (default: that of each volume)")
	command.Flags().DurationVar(&how.timeout, "timeout", 12*time.Hour, "how long all restores may take, after confirmation")
	return command
}
