package main

import (
	"github.com/spf13/cobra"

	"github.com/lateen-project/lateen/cmd/lateen/cluster"
)

// completeFlags lets a shell complete the values of the flags that several commands have.
func completeFlags(command *cobra.Command) {
	complete := map[string]cobra.CompletionFunc{
		"context":   contexts,
		"output":    cobra.FixedCompletions([]string{string(cluster.JSON), string(cluster.YAML)}, cobra.ShellCompDirectiveNoFileComp),
		"log-level": cobra.FixedCompletions([]string{"debug", "info", "warning", "error"}, cobra.ShellCompDirectiveNoFileComp),
	}
	for name, with := range complete {
		if command.Flags().Lookup(name) != nil {
			// The only errors are an unknown flag and a second registration.
			_ = command.RegisterFlagCompletionFunc(name, with)
		}
	}
}

// contexts returns the contexts of the kubeconfig that the command line names.
func contexts(command *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	kubeconfig, err := command.Flags().GetString("kubeconfig")
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := (&cluster.Flags{Kubeconfig: kubeconfig}).Contexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
