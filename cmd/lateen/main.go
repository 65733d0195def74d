// Command lateen is a node-agent for Velero, and the tools around it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lateen-project/lateen/cmd/lateen/adopt"
	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/cmd/lateen/bundle"
	"github.com/lateen-project/lateen/cmd/lateen/cancel"
	"github.com/lateen-project/lateen/cmd/lateen/check"
	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/install"
	"github.com/lateen-project/lateen/cmd/lateen/status"
	"github.com/lateen-project/lateen/cmd/lateen/uninstall"
	"github.com/lateen-project/lateen/cmd/lateen/verify"
)

func main() {
	if err := newRoot().ExecuteContext(untilSignal()); err != nil {
		fmt.Fprintln(os.Stderr, "lateen:", strings.TrimSpace(err.Error()))
		os.Exit(cli.ExitCode(err))
	}
}

// untilSignal returns a context that ends at the first signal. The second one ends a command that does not end by itself, but for SIGHUP:
// a shell whose terminal is closed repeats it at once.
func untilSignal() context.Context {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, func() {
		signal.Ignore(syscall.SIGHUP)
		stop()
	})
	return ctx
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
	root.AddCommand(newVersion(), agent.NewCommand(version, userAgent()), bundle.NewCommand(userAgent(), runCommand))
	for _, newCommand := range []func(userAgent string) *cobra.Command{
		install.NewCommand, uninstall.NewCommand, adopt.NewCommand, check.NewCommand, status.NewCommand, status.NewExplainCommand, cancel.NewCommand,
		verify.NewCommand,
	} {
		root.AddCommand(newCommand(userAgent()))
	}
	for _, command := range root.Commands() {
		completeFlags(command)
	}
	return root
}

// runCommand runs a command of this program.
func runCommand(ctx context.Context, out, warnings io.Writer, args ...string) error {
	root := newRoot() //nolint:contextcheck // ExecuteContext passes it to the command
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(warnings)
	return root.ExecuteContext(ctx)
}

// completeFlags lets a shell complete the values of the flags that several commands have.
func completeFlags(command *cobra.Command) {
	complete := map[string]cobra.CompletionFunc{
		"context":   contexts,
		"output":    cobra.FixedCompletions([]string{string(cli.JSON), string(cli.YAML)}, cobra.ShellCompDirectiveNoFileComp),
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
	names, err := (&cli.Flags{Kubeconfig: kubeconfig}).Contexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
