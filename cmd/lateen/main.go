// Command lateen is a node-agent for Velero, and the tools around it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"

	"github.com/lateen-project/lateen/cmd/lateen/adopt"
	"github.com/lateen-project/lateen/cmd/lateen/cli"
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

// exitError is an error with an exit code.
type exitError struct {
	error
	code int
}

func (e exitError) Unwrap() error { return e.error }

// exitWith adds an exit code to an error; nil stays nil.
func exitWith(code int, err error) error {
	if err == nil {
		return nil
	}
	return exitError{err, code}
}

func exitCode(err error) int {
	if exit := (exitError{}); errors.As(err, &exit) {
		return exit.code
	}
	return 1
}

// levels maps Velero's values of --log-level to slog levels. Verbosity n of klog is level -n of slog. Steps are
// logged at 2 (debug), waits and ignored events at 4 (trace).
func levels() map[string]slog.Level {
	return map[string]slog.Level{
		"trace": -4, "debug": -2, "info": slog.LevelInfo,
		"warning": slog.LevelWarn, "error": slog.LevelError, "fatal": slog.LevelError, "panic": slog.LevelError,
	}
}

// newLogger writes lines of key=value pairs, as Velero does, or JSON. Options.Complete has validated level and format.
func newLogger(out io.Writer, level, format string) logr.Logger {
	options := &slog.HandlerOptions{Level: levels()[level], ReplaceAttr: namedAsVelero}
	if format == "json" {
		return logr.FromSlogHandler(slog.NewJSONHandler(out, options))
	}
	return logr.FromSlogHandler(slog.NewTextHandler(out, options))
}

// namedAsVelero replaces the level name with the one of Velero's logs, in lower case.
func namedAsVelero(groups []string, attribute slog.Attr) slog.Attr {
	level, is := attribute.Value.Any().(slog.Level)
	if !is || attribute.Key != slog.LevelKey || len(groups) > 0 {
		return attribute
	}
	switch {
	case level >= slog.LevelError:
		return slog.String(slog.LevelKey, "error")
	case level >= slog.LevelWarn:
		return slog.String(slog.LevelKey, "warning")
	case level >= slog.LevelInfo:
		return slog.String(slog.LevelKey, "info")
	case level >= levels()["debug"]:
		return slog.String(slog.LevelKey, "debug")
	default:
		return slog.String(slog.LevelKey, "trace")
	}
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
