package main

import (
	"context"
	"errors"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/metrics"
)

func newNodeAgent() *cobra.Command {
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
			options.AsVelero = len(args) > 0
			if err := options.Complete(os.Getenv); err != nil {
				return err
			}
			return runNodeAgent(command.Context(), options)
		},
	}
	options.AddFlags(command.Flags())
	return command
}

// runNodeAgent converts options to the dependencies of the agent and runs it. Package agent assembles it.
func runNodeAgent(ctx context.Context, options startup.Options) error {
	logger := newLogger(os.Stderr, options.LogLevel, options.LogFormat)
	klog.SetLogger(logger)
	ctx = klog.NewContext(ctx, logger)
	selected := cli.Flags{Kubeconfig: options.Kubeconfig, Context: options.Kubecontext, UserAgent: userAgent()}
	apiServer, err := selected.Config()
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	meter := metrics.New(registry, version, options.NodeName)
	server, err := agent.Listen(options.MetricsAddress, registry, options.Profiling)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- server.Serve(); stop() }() // an agent without metrics must not keep running
	logger.Info("Starting node-agent", "version", version, "node", options.NodeName, "namespace", options.Namespace, "metricsAddress", server.Address())

	err = agent.Run(ctx, agent.Options{
		Flags: options, Rest: apiServer, Metrics: meter, Limits: options.Limits(),
		Clock: clock.RealClock{}, Log: os.Stderr, Server: server,
	})
	return errors.Join(err, server.Close(), <-served)
}
