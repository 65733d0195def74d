package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
)

func newExplain() *cobra.Command {
	var at viewOptions
	command := &cobra.Command{
		Use:   "explain KIND/NAME",
		Short: "Show the timeline of one transfer, and why it waits or failed",
		Long: "Show the timeline of one transfer, from its status, its mover, its volumes and snapshots, and Events. Then show what\n" +
			"it waits for or why it failed, and what to do. Kinds are podvolumebackup (pvb),\n" +
			"podvolumerestore (pvr), dataupload (du), datadownload (dd), and backuprepository (br).",
		Example: "  lateen explain pvb/nightly-x7k2p",
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			of, err := diagnose.ParseReference(args[0])
			if err != nil {
				return err
			}
			clients, err := at.clients()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(command.Context(), statusTimeout)
			defer cancel()
			seen, err := clients.Observe(ctx, at.cluster.ViewNamespace(), of, time.Now())
			if err != nil {
				return err
			}
			story, err := seen.Timeline(of)
			if err != nil {
				return err
			}
			return at.print(command.OutOrStdout(), story, story.Write)
		},
	}
	at.addFlags(command.Flags())
	return command
}
