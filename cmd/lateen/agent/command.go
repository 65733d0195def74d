package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/metrics"
)

// NewCommand returns `lateen node-agent`. The version is that of the program.
func NewCommand(version, userAgent string) *cobra.Command {
	var options startup.Options
	command := &cobra.Command{
		Use:   "node-agent [server]",
		Short: "Run the node-agent of this node",
		Long: "Run the node-agent of this node. The argument server has no effect on it: Velero's manifests run\n" +
			"/velero node-agent server, and the image accepts this too.",
		Example: "  lateen node-agent --mover-template=deployment/velero\n" +
			"  NODE_NAME=worker-1 lateen node-agent --kubeconfig ~/.kube/config --log-level debug",
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"server"},
		RunE: func(command *cobra.Command, args []string) error {
			if err := options.Complete(os.Getenv, args...); err != nil {
				return err
			}
			return run(command.Context(), options, version, userAgent)
		},
	}
	options.AddFlags(command.Flags())
	return command
}

// run runs the agent with its metrics endpoint.
func run(ctx context.Context, options startup.Options, version, userAgent string) error {
	logger := newLogger(os.Stderr, options.LogLevel, options.LogFormat)
	klog.SetLogger(logger)
	ctx = klog.NewContext(ctx, logger)
	selected := cli.Flags{Kubeconfig: options.Kubeconfig, Context: options.Kubecontext, UserAgent: userAgent}
	apiServer, err := selected.Config()
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	meter := metrics.New(registry, version, options.NodeName)
	server, err := Listen(options.MetricsAddress, registry, options.Profiling)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- server.Serve(); stop() }() // an agent without metrics must not keep running
	logger.Info("Starting node-agent", "version", version, "node", options.NodeName, "namespace", options.Namespace, "metricsAddress", server.Address())

	err = Run(ctx, Options{
		Flags: options, Rest: apiServer, Metrics: meter, Limits: options.Limits(),
		Clock: clock.RealClock{}, Log: os.Stderr, Server: server,
	})
	return errors.Join(err, server.Close(), <-served)
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
func namedAsVelero(_ []string, attribute slog.Attr) slog.Attr {
	level, is := attribute.Value.Any().(slog.Level)
	if !is {
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
