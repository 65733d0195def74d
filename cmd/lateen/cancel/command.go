package cancel

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/status"
	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
	"github.com/lateen-project/lateen/exposer/api"
)

// NewCommand returns `lateen cancel`. The user agent is that of all its requests.
func NewCommand(userAgent string) *cobra.Command {
	var at cli.View
	at.UserAgent = userAgent
	var backup, restore string
	var how options
	command := &cobra.Command{
		Use:   "cancel {--backup NAME | --restore NAME | KIND/NAME...}",
		Short: "Cancel the transfers of a backup or restore, or single ones",
		Long: "Cancel the unfinished transfers of a backup or restore, or those that are named as pvb/NAME, pvr/NAME, du/NAME or\n" +
			"dd/NAME. The command shows them, asks, sets spec.cancel, and waits until they have ended. While Velero still adds transfers\n" +
			"to the backup or restore, it cancels those too. The backup or restore itself continues without the data of these volumes.",
		Example: "  lateen cancel --backup nightly-20261126\n" +
			"  lateen cancel --restore nightly-20261126 --dry-run\n" +
			"  lateen cancel du/nightly-x7k2p pvb/nightly-9dq4c --force",
		ValidArgsFunction: status.CompleteTransfers(&at),
		RunE: func(command *cobra.Command, args []string) error {
			selected, err := selectionOf(backup, restore, args)
			if err != nil {
				return err
			}
			return cli.Act(&at, command, &how.prompt, func(client *cli.Client) (*Output, error) {
				return (&cancellation{Client: client, selection: selected}).run(command.Context(), how)
			})
		},
	}
	at.AddFlags(command.Flags())
	command.Flags().StringVar(&backup, "backup", "", "cancel the transfers of this Backup")
	command.Flags().StringVar(&restore, "restore", "", "cancel the transfers of this Restore")
	command.Flags().BoolVar(&how.dryRun, "dry-run", false, "show the transfers and change nothing")
	command.Flags().BoolVar(&how.prompt.Force, "force", false, "do not ask for confirmation")
	command.Flags().BoolVar(&how.wait, "wait", true, "wait until the transfers have ended")
	command.Flags().DurationVar(&how.timeout, "timeout", 30*time.Minute, "how long to wait, after confirmation")
	return command
}

// selectionOf returns the transfers that the command line selects.
func selectionOf(backup, restore string, names []string) (selection, error) {
	given := 0
	for _, is := range []bool{backup != "", restore != "", len(names) > 0} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return selection{}, errors.New("select transfers with one of --backup, --restore, or names such as pvb/nightly-x7k2p")
	case backup != "":
		return backupNamed(backup), nil
	case restore != "":
		return restoreNamed(restore), nil
	}
	var all selection
	for _, name := range names {
		of, err := diagnose.ParseReference(name)
		if err != nil {
			return selection{}, err
		}
		kinds := api.Kinds()
		at := slices.IndexFunc(kinds, func(kind api.Kind) bool { return kind.GVK.Kind == of.Kind })
		if at < 0 {
			return selection{}, fmt.Errorf("%s is not a transfer: only pvb, pvr, du and dd can be canceled", name)
		}
		if !slices.ContainsFunc(all.targets, func(one *target) bool { return one.GVK.Kind == of.Kind && one.name == of.Name }) {
			all.targets = append(all.targets, &target{Kind: kinds[at], name: of.Name, options: metav1.SingleObject(metav1.ObjectMeta{Name: of.Name})})
		}
	}
	return all, nil
}
