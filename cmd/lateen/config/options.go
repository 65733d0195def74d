// Package config is the only reader of flags, environment and ConfigMaps. It turns them into values
// and says what is wrong with them; it never acts on a transfer and never changes an object.
package config

import (
	"strings"
	"time"

	"github.com/spf13/pflag"
)

const (
	// DaemonSetName is the workload that Velero looks up to see whether a cluster has a node-agent
	// (Velero's pkg/nodeagent), and the default template of movers.
	DaemonSetName = "node-agent"
	// WindowsDaemonSetName is the same on Windows nodes.
	WindowsDaemonSetName = "node-agent-windows"
	// VeleroDeployment is the name that `velero install` gives to Velero's server.
	VeleroDeployment = "velero"
	// DefaultHostPath is where Velero's manifests mount the kubelet's pods directory in a node-agent.
	DefaultHostPath = "/host_pods"

	// DefaultNamespace is where `velero install` puts everything.
	DefaultNamespace = "velero"
)

// Values of --mover-template: a DaemonSet by its well-known name, or a Deployment by any name.
const (
	templateDaemonSet  = "daemonset"
	templateDeployment = "deployment/"
)

// Options are the flags and the environment of `lateen node-agent`. The first group has the names,
// meanings and defaults of `velero node-agent server` in Velero 1.18.
type Options struct {
	LogLevel                  string        // trace, debug, info, warning, error, fatal or panic
	LogFormat                 string        // text or json
	ResourceTimeout           time.Duration // what movers may take for a resource that is not ready at once
	DataMoverPrepareTimeout   time.Duration // from Accepted to Prepared
	MetricsAddress            string        // host:port of /metrics, /healthz and /readyz
	NodeAgentConfigMap        string        // a name in Namespace; empty: all defaults
	BackupRepositoryConfigMap string        // a name in Namespace; empty: all defaults
	Namespace                 string        // Velero's
	Kubeconfig                string        // a file; empty: KUBECONFIG, then the pod's ServiceAccount
	Kubecontext               string        // in that file; empty: its current one
	Features                  string        // accepted for Velero's manifests; none changes anything

	MoverImage          string        // empty: that of the Deployment velero
	MoverTemplate       string        // "daemonset" or "deployment/<name>"
	MoverServiceAccount string        // empty: that of the Deployment velero
	MoverRetries        int           // how often a mover that was lost is replaced
	CancelGrace         time.Duration // what a mover gets to answer a cancel before its pod is deleted
	StallTimeout        time.Duration // that a mover may report nothing new before it is replaced or given up; 0: for ever
	Workers             int           // reconcilers per kind
	KubeAPIQPS          float32       // requests per second to the API server, Events apart
	KubeAPIBurst        int           // requests at once
	HostPath            string        // where the kubelet's pods directory is mounted; empty: it is not
	StrictConfig        bool          // a Problem keeps the agent from starting
	Profiling           bool          // serve /debug/pprof
	StartupTimeout      time.Duration // what all reads before the start may take together

	MaintenanceConfigMap   string        // a name in Namespace; empty: all defaults
	MaintenanceFrequency   time.Duration // of every repository; 0: each has its own
	MaintenanceConcurrency int           // unfinished maintenance jobs in the cluster; 0: repositories are left to Velero's server
	MaintenanceTimeout     time.Duration // of a maintenance job

	NodeName string // from NODE_NAME
	PodUID   string // from POD_UID; empty if the DaemonSet does not set it
}

// AddFlags declares all flags with their defaults, which Options has from then on.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.addVeleroFlags(flags)
	flags.StringVar(&o.MoverImage, "mover-image", "", "image of the movers, which run its /velero (default: that of Deployment velero)")
	flags.StringVar(&o.MoverTemplate, "mover-template", templateDaemonSet, "workload whose pod template movers take after: daemonset, or deployment/<name>")
	flags.StringVar(&o.MoverServiceAccount, "mover-service-account", "", "ServiceAccount of the movers (default: that of Deployment velero)")
	flags.IntVar(&o.MoverRetries, "mover-retries", 3, "how often a mover that was evicted, preempted or deleted is replaced")
	flags.DurationVar(&o.CancelGrace, "cancel-grace", 5*time.Minute, "how long a mover may take to answer a cancel before its pod is deleted")
	flags.DurationVar(&o.StallTimeout, "stall-timeout", 2*time.Hour, "how long a mover that works may neither move a byte nor send an Event before it is replaced, and if it is not the first one given up; 0 is for ever")
	flags.IntVar(&o.Workers, "workers", 8, "resources of one kind that are handled at the same time")
	flags.Float32Var(&o.KubeAPIQPS, "kube-api-qps", 100, "requests per second to the API server")
	flags.IntVar(&o.KubeAPIBurst, "kube-api-burst", 200, "requests to the API server at once")
	flags.StringVar(&o.HostPath, "host-path", "", "directory where the kubelet's pods directory is mounted in this container; "+
		"without it the paths of volumes are derived from pods, claims and volumes")
	flags.Lookup("host-path").NoOptDefVal = DefaultHostPath
	flags.StringVar(&o.MaintenanceConfigMap, "repo-maintenance-job-configmap", "", "ConfigMap with the configuration of maintenance jobs, read anew for each of them (default: that of Deployment velero)")
	flags.DurationVar(&o.MaintenanceFrequency, "repo-maintenance-frequency", 0, "how often repositories are maintained, whatever they say themselves (default: what they say)")
	flags.IntVar(&o.MaintenanceConcurrency, "repo-maintenance-concurrency", 3, "maintenance jobs in the cluster at once; 0 leaves repositories to Velero's server")
	flags.DurationVar(&o.MaintenanceTimeout, "repo-maintenance-timeout", 12*time.Hour, "how long a maintenance job may take")
	flags.BoolVar(&o.StrictConfig, "strict-config", false, "refuse to start if anything in the configuration cannot be used")
	flags.BoolVar(&o.Profiling, "profiling", false, "serve /debug/pprof on the metrics address")
	flags.DurationVar(&o.StartupTimeout, "startup-timeout", 30*time.Second, "how long to wait for the API server before giving up")
}

// addVeleroFlags declares what `velero node-agent server` has too (velero-protocol 5.1).
func (o *Options) addVeleroFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.LogLevel, "log-level", "info", "least severe messages to log: "+oneOf(logLevels()))
	flags.StringVar(&o.LogFormat, "log-format", "text", "format of the log: "+oneOf(logFormats()))
	flags.DurationVar(&o.ResourceTimeout, "resource-timeout", 10*time.Minute, "how long movers wait for resources that are not ready at once")
	flags.DurationVar(&o.DataMoverPrepareTimeout, "data-mover-prepare-timeout", 30*time.Minute, "how long a transfer may take from being accepted to being prepared")
	flags.StringVar(&o.MetricsAddress, "metrics-address", ":8085", "address of /metrics, /healthz and /readyz")
	flags.StringVar(&o.NodeAgentConfigMap, "node-agent-configmap", "", "ConfigMap with the node-agent configuration")
	flags.StringVar(&o.BackupRepositoryConfigMap, "backup-repository-configmap", "", "ConfigMap with the configuration of backup repositories")
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of Velero (default: VELERO_NAMESPACE, else velero)")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file (default: KUBECONFIG, else the pod's ServiceAccount)")
	flags.StringVar(&o.Kubecontext, "kubecontext", "", "context of the kubeconfig (default: its current one)")
	flags.StringVar(&o.Features, "features", "", "accepted because Velero's manifests pass it; no feature changes anything")
}

// VeleroArgs parts the arguments of an agent into those that `velero node-agent server` has too, and the others. A word
// that is no flag is the value of the one before it.
func VeleroArgs(args []string) (velero, lateen []string) {
	var options Options
	known := pflag.NewFlagSet("", pflag.ContinueOnError)
	options.addVeleroFlags(known)
	taken := true
	for _, arg := range args {
		if name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); strings.HasPrefix(arg, "--") {
			taken = known.Lookup(name) != nil
		} else if strings.HasPrefix(arg, "-") {
			taken = name != "" && known.ShorthandLookup(name[:1]) != nil
		}
		if taken {
			velero = append(velero, arg)
		} else {
			lateen = append(lateen, arg)
		}
	}
	return velero, lateen
}

// logLevels are the names that Velero takes; they go to movers as they are.
func logLevels() []string {
	return []string{"trace", "debug", "info", "warning", "error", "fatal", "panic"}
}

func logFormats() []string { return []string{"text", "json"} }
