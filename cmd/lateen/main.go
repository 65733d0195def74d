// Command lateen is a node-agent for Velero, and the tools around it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is the release or commit that the binary was built from.
var version = "unknown" // set by the linker

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "lateen:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "lateen",
		Short:         "A node-agent for Velero",
		Version:       version,
		SilenceUsage:  true, // an error is one line
		SilenceErrors: true,
	}
	root.AddCommand(newNodeAgent(), newInstall(), newUninstall(), newAdopt())
	return root
}
