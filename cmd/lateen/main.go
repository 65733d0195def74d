// Command lateen is a node-agent for Velero, and the tools around it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lateen-project/lateen/cmd/lateen/adopt"
	"github.com/lateen-project/lateen/cmd/lateen/install"
	"github.com/lateen-project/lateen/cmd/lateen/uninstall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "lateen:", strings.TrimSpace(err.Error()))
		os.Exit(exitCode(err)) //nolint:gocritic // nothing is left to stop
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "lateen",
		Short:         "A node-agent for Velero",
		Version:       version,
		SilenceUsage:  true, // an error says what to do
		SilenceErrors: true,
	}
	// kubectl runs a program kubectl-lateen as `kubectl lateen`.
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-") {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl lateen"}
	}
	root.AddCommand(newVersion(), newNodeAgent(), install.NewCommand(userAgent()), uninstall.NewCommand(userAgent()), adopt.NewCommand(userAgent()), newCheck(), newStatus(), newExplain())
	for _, command := range root.Commands() {
		completeFlags(command)
	}
	return root
}
