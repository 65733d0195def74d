package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
)

// completionTimeout bounds how long a shell waits for the names of a completion.
const completionTimeout = 3 * time.Second

func newExplain() *cobra.Command {
	var at viewOptions
	command := &cobra.Command{
		Use:   "explain KIND/NAME",
		Short: "Show the timeline of one transfer, and why it waits or failed",
		Long: "Show the timeline of one transfer, from its status, its mover, its volumes and snapshots, and Events. Then show what\n" +
			"it waits for or why it failed, and what to do. Kinds are podvolumebackup (pvb),\n" +
			"podvolumerestore (pvr), dataupload (du), datadownload (dd), and backuprepository (br).",
		Example: "  lateen explain pvb/nightly-x7k2p\n" +
			"  lateen explain dataupload/nightly-x7k2p -o yaml",
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(command *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return at.references(command.Context(), typed)
		},
		RunE: func(command *cobra.Command, args []string) error {
			of, err := diagnose.ParseReference(args[0])
			if err != nil {
				return err
			}
			clients, err := at.clients()
			if err != nil {
				return err
			}
			snapshot, err := clients.Read(command.Context(), at.watchOptions(), of)
			if err != nil {
				return err
			}
			timeline, err := snapshot.Timeline(of)
			if err != nil {
				return err
			}
			return at.print(command.OutOrStdout(), timeline, timeline.Write)
		},
	}
	at.addFlags(command)
	return command
}

// references completes KIND/NAME: first the kind, then the names of that kind in the cluster.
func (v *viewOptions) references(ctx context.Context, typed string) ([]string, cobra.ShellCompDirective) {
	kind, _, named := strings.Cut(typed, "/")
	if !named {
		var all []string
		for _, each := range diagnose.ShortNames() {
			all = append(all, each+"/")
		}
		return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	of, err := diagnose.ParseReference(kind + "/x") // any name
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	clients, err := v.clients()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	names, err := clients.Names(ctx, v.cluster.ViewNamespace(), of.Resource())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for i, name := range names {
		names[i] = kind + "/" + name
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
