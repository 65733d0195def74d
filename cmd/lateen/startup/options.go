// Package startup reads everything that an agent needs before it starts: flags, environment, ConfigMaps and pod
// templates. It never acts on a transfer and never changes an object.
package startup

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Values of --mover-template: a DaemonSet by its well-known name, or a Deployment by any name.
const (
	templateDaemonSet  = "daemonset"
	templateDeployment = "deployment/"
)

// Options are the flags and the environment of `lateen node-agent`. The first group has the names, meanings and
// defaults of `velero node-agent server` in Velero 1.18.
type Options struct {
	LogLevel                  string        // trace, debug, info, warning, error, fatal or panic
	LogFormat                 string        // text or json
	ResourceTimeout           time.Duration // limit of a mover for a resource that is not ready at once
	DataMoverPrepareTimeout   time.Duration // from Accepted to Prepared
	MetricsAddress            string        // host:port of /metrics, /healthz and /readyz
	NodeAgentConfigMap        string        // a name in Namespace; empty: all defaults
	BackupRepositoryConfigMap string        // a name in Namespace; empty: all defaults
	Namespace                 string        // of Velero
	Kubeconfig                string        // a file; empty: KUBECONFIG, then the pod's ServiceAccount
	Kubecontext               string        // in that file; empty: its current one
	Features                  string        // accepted for Velero's manifests, without effect

	MoverImage          string        // empty: that of the Deployment velero
	MoverTemplate       string        // "daemonset" or "deployment/<name>"
	MoverServiceAccount string        // empty: that of the Deployment velero
	MoverRetries        int           // maximum number of replacements for a lost mover
	CancelGrace         time.Duration // limit for a mover to react to a cancel, before its pod is deleted
	// limit without progress of a mover, before it is replaced or given up; 0: unlimited
	StallTimeout   time.Duration
	Workers        int           // reconcilers per kind
	KubeAPIQPS     float32       // maximum rate of requests to the API server, per second, without Events
	KubeAPIBurst   int           // maximum burst of requests
	HostPath       string        // mount path of the kubelet's pods directory; empty: not mounted
	StrictConfig   bool          // a Problem prevents the start
	Profiling      bool          // serve /debug/pprof
	StartupTimeout time.Duration // limit for all reads before the start together

	MaintenanceConfigMap string        // a name in Namespace; empty: all defaults
	MaintenanceFrequency time.Duration // of every repository; 0: each repository's own
	// unfinished maintenance jobs in the cluster; 0: Velero's server maintains repositories
	MaintenanceConcurrency int
	MaintenanceTimeout     time.Duration // of a maintenance job
	MaintenanceWindow      string        // daily, in UTC, such as 01:00-05:00; empty: the whole day

	// how long finished DataUploads and DataDownloads of a finished Backup or Restore stay; 0: until Velero deletes them
	FinishedTTL time.Duration

	NodeName string // from NODE_NAME
	PodUID   string // from POD_UID; empty if the DaemonSet does not set it
	PodName  string // from HOSTNAME, which the container runtime sets; another name with hostNetwork or spec.hostname
	AsVelero bool   // started with the arguments of Velero's agent, node-agent server
}

// AddFlags declares all flags and sets their defaults in Options.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.addVeleroFlags(flags)
	flags.StringVar(&o.MoverImage, "mover-image", "", "image of the movers, which contains /velero (default: that of Deployment velero)")
	flags.StringVar(&o.MoverTemplate, "mover-template", templateDaemonSet, "workload from whose pod template movers inherit: daemonset, or deployment/<name>")
	flags.StringVar(&o.MoverServiceAccount, "mover-service-account", "", "ServiceAccount of the movers (default: that of Deployment velero)")
	flags.IntVar(&o.MoverRetries, "mover-retries", 3, "how many lost movers of a transfer are replaced (evicted, preempted, deleted ...)")
	flags.DurationVar(&o.CancelGrace, "cancel-grace", 5*time.Minute, "how long a mover may take to respond to a cancel before its pod is deleted")
	flags.DurationVar(&o.StallTimeout, "stall-timeout", 2*time.Hour, "how long a running mover may neither move a byte nor send an Event; then the first mover is replaced, and a further one fails the transfer; 0 is no limit")
	flags.IntVar(&o.Workers, "workers", 8, "resources of one kind that are reconciled concurrently")
	flags.Float32Var(&o.KubeAPIQPS, "kube-api-qps", 100, "maximum rate of requests of each client to the API server, per second")
	flags.IntVar(&o.KubeAPIBurst, "kube-api-burst", 200, "maximum burst of requests of each client to the API server")
	flags.StringVar(&o.HostPath, "host-path", "", "mount path of the kubelet's pods directory in this container; "+
		"if not set, volume paths are derived from pods, claims and volumes")
	flags.Lookup("host-path").NoOptDefVal = api.HostPodsMount
	flags.StringVar(&o.MaintenanceConfigMap, "repo-maintenance-job-configmap", "", "ConfigMap with the configuration of maintenance jobs, read for each job (default: that of Deployment velero)")
	flags.DurationVar(&o.MaintenanceFrequency, "repo-maintenance-frequency", 0, "maintenance interval of all repositories (default: that of each repository)")
	flags.IntVar(&o.MaintenanceConcurrency, "repo-maintenance-concurrency", 3, "concurrent maintenance jobs in the cluster; 0 leaves maintenance to Velero's server")
	flags.DurationVar(&o.MaintenanceTimeout, "repo-maintenance-timeout", 12*time.Hour, "how long a maintenance job may take")
	flags.StringVar(&o.MaintenanceWindow, "repo-maintenance-window", "", "daily time in UTC in which maintenance jobs may start, such as 01:00-05:00 (default: the whole day)")
	flags.DurationVar(&o.FinishedTTL, "finished-ttl", 0, "how long finished DataUploads and DataDownloads stay after their backup or restore is done; 0 keeps them until Velero deletes them")
	flags.BoolVar(&o.StrictConfig, "strict-config", false, "do not start if a value of the configuration cannot be used")
	flags.BoolVar(&o.Profiling, "profiling", false, "serve /debug/pprof on the metrics address")
	flags.DurationVar(&o.StartupTimeout, "startup-timeout", 30*time.Second, "how long to wait for the API server at the start")
}

// addVeleroFlags declares the flags that `velero node-agent server` has too (velero-protocol 5.1).
func (o *Options) addVeleroFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.LogLevel, "log-level", "info", "log level of the agent, and of movers that inherit from its DaemonSet: "+config.OneOf(logLevels()))
	flags.StringVar(&o.LogFormat, "log-format", "text", "log format of the same: "+config.OneOf(logFormats()))
	flags.DurationVar(&o.ResourceTimeout, "resource-timeout", 10*time.Minute, "how long movers wait for a resource that is not ready, such as a repository")
	flags.DurationVar(&o.DataMoverPrepareTimeout, "data-mover-prepare-timeout", 30*time.Minute, "how long a transfer may take from Accepted to Prepared")
	flags.StringVar(&o.MetricsAddress, "metrics-address", ":8085", "address of /metrics, /healthz and /readyz")
	flags.StringVar(&o.NodeAgentConfigMap, "node-agent-configmap", "", "ConfigMap with the node-agent configuration")
	flags.StringVar(&o.BackupRepositoryConfigMap, "backup-repository-configmap", "", "ConfigMap with the configuration of backup repositories")
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of Velero (default: VELERO_NAMESPACE, else velero)")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file (default: KUBECONFIG, else the pod's ServiceAccount)")
	flags.StringVar(&o.Kubecontext, "kubecontext", "", "context of the kubeconfig (default: its current one)")
	flags.StringVar(&o.Features, "features", "", "no effect; accepted because Velero's manifests set it")
}

// Limits returns the bounds of the protocol with those that flags set.
func (o *Options) Limits() transfer.Limits {
	limits := transfer.DefaultLimits()
	limits.PrepareTimeout, limits.CancelGrace = o.DataMoverPrepareTimeout, o.CancelGrace
	limits.StallTimeout, limits.Retries = o.StallTimeout, o.MoverRetries
	return limits
}

// Window returns the beginning and the end of the daily maintenance window, since midnight UTC; 0 and 0 without one.
func (o *Options) Window() (start, end time.Duration, err error) {
	if o.MaintenanceWindow == "" {
		return 0, 0, nil
	}
	from, to, _ := strings.Cut(o.MaintenanceWindow, "-")
	opens, err1 := time.Parse("15:04", from)
	closes, err2 := time.Parse("15:04", to)
	if err1 != nil || err2 != nil || opens.Equal(closes) {
		return 0, 0, errors.New("use two different times in UTC, such as 01:00-05:00 or 22:00-02:00")
	}
	midnight := opens.Truncate(24 * time.Hour)
	return opens.Sub(midnight), closes.Sub(midnight), nil
}

// VeleroArgs splits the arguments of an agent into those of `velero node-agent server`, and the others. An argument
// that is no flag is the value of the flag before it.
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

// logLevels are the names that Velero accepts. Movers get them unchanged.
func logLevels() []string {
	return []string{"trace", "debug", "info", "warning", "error", "fatal", "panic"}
}

func logFormats() []string { return []string{"text", "json"} }

// Complete reads arguments and environment, and validates every value. Its error is one line that names each invalid flag or
// variable and its fix.
func (o *Options) Complete(getenv func(string) string, args ...string) error {
	o.AsVelero = len(args) > 0
	o.NodeName, o.PodUID, o.PodName = getenv("NODE_NAME"), getenv("POD_UID"), getenv("HOSTNAME")
	o.Namespace = cmp.Or(o.Namespace, getenv("VELERO_NAMESPACE"), api.DefaultNamespace)
	o.MoverTemplate = cmp.Or(o.MoverTemplate, templateDaemonSet)
	wrong := slices.Concat(o.checkNames(), o.checkNumbers(), o.checkChoices())
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

func (o *Options) checkNames() (wrong []string) {
	if o.NodeName == "" {
		wrong = append(wrong, "NODE_NAME is not set: it must name the node of this agent; "+
			"in a DaemonSet, set env NODE_NAME to valueFrom.fieldRef.fieldPath spec.nodeName")
	}
	for _, name := range []struct {
		from, value, of string
		invalid         func(string) []string
	}{
		{"NODE_NAME", o.NodeName, "node", validation.IsDNS1123Subdomain},
		{"--namespace (or VELERO_NAMESPACE)", o.Namespace, "namespace", validation.IsDNS1123Label},
		{"--node-agent-configmap", o.NodeAgentConfigMap, "object", validation.IsDNS1123Subdomain},
		{"--backup-repository-configmap", o.BackupRepositoryConfigMap, "object", validation.IsDNS1123Subdomain},
		{"--repo-maintenance-job-configmap", o.MaintenanceConfigMap, "object", validation.IsDNS1123Subdomain},
		{"--mover-service-account", o.MoverServiceAccount, "object", validation.IsDNS1123Subdomain},
	} {
		if bad := name.invalid(name.value); name.value != "" && len(bad) > 0 {
			wrong = append(wrong, fmt.Sprintf("%s %q is not a valid %s name: %s", name.from, name.value, name.of, bad[0]))
		}
	}
	if strings.ContainsAny(o.MoverImage, " \t\r\n") {
		wrong = append(wrong, fmt.Sprintf("--mover-image %q contains white space: use repository:tag or repository@digest", o.MoverImage))
	}
	if _, err := o.workload(""); err != nil {
		wrong = append(wrong, err.Error())
	}
	return wrong
}

func (o *Options) checkNumbers() (wrong []string) {
	for _, number := range []struct {
		flag  string
		value any
		valid bool
		use   string
	}{
		{"--mover-retries", o.MoverRetries, o.MoverRetries >= 0, "0 or more"},
		{"--workers", o.Workers, o.Workers >= 1, "1 or more"},
		{"--kube-api-burst", o.KubeAPIBurst, o.KubeAPIBurst >= 1, "1 or more"},
		{"--kube-api-qps", o.KubeAPIQPS, o.KubeAPIQPS > 0, "a number greater than 0"}, // NaN is not
		{"--resource-timeout", o.ResourceTimeout, o.ResourceTimeout > 0, "a duration greater than 0, such as 10m"},
		{"--data-mover-prepare-timeout", o.DataMoverPrepareTimeout, o.DataMoverPrepareTimeout > 0, "a duration greater than 0, such as 10m"},
		{"--startup-timeout", o.StartupTimeout, o.StartupTimeout > 0, "a duration greater than 0, such as 10m"},
		{"--repo-maintenance-concurrency", o.MaintenanceConcurrency, o.MaintenanceConcurrency >= 0, "0 or more"},
		{"--repo-maintenance-timeout", o.MaintenanceTimeout, o.MaintenanceTimeout >= time.Second, "1s or more, such as 12h"},
		{"--repo-maintenance-frequency", o.MaintenanceFrequency, o.MaintenanceFrequency >= 0, "0 or more, such as 24h"},
		{"--finished-ttl", o.FinishedTTL, o.FinishedTTL >= 0, "0 to keep finished transfers, or a duration such as 168h"},
		{"--cancel-grace", o.CancelGrace, o.CancelGrace >= 0, "0 or more, such as 5m"},
		{"--stall-timeout", o.StallTimeout, o.StallTimeout == 0 || o.StallTimeout >= time.Second, "0 for no limit, or 1s or more, such as 2h"},
	} {
		if !number.valid {
			wrong = append(wrong, fmt.Sprintf("%s is %v: use %s", number.flag, number.value, number.use))
		}
	}
	return wrong
}

func (o *Options) checkChoices() (wrong []string) {
	for _, choice := range []struct {
		flag, value string
		known       []string
	}{{"--log-level", o.LogLevel, logLevels()}, {"--log-format", o.LogFormat, logFormats()}} {
		if !slices.Contains(choice.known, choice.value) {
			wrong = append(wrong, fmt.Sprintf("%s %q is unknown: use %s", choice.flag, choice.value, config.OneOf(choice.known)))
		}
	}
	if _, _, err := o.Window(); err != nil {
		wrong = append(wrong, fmt.Sprintf("--repo-maintenance-window %q is invalid: %v", o.MaintenanceWindow, err))
	}
	if err := checkAddress(o.MetricsAddress); err != nil {
		wrong = append(wrong, fmt.Sprintf("--metrics-address %q is invalid (%v): use host:port or :port", o.MetricsAddress, err))
	}
	// mount paths on Windows may lack a drive
	if o.HostPath != "" && !filepath.IsAbs(o.HostPath) && !path.IsAbs(o.HostPath) {
		wrong = append(wrong, fmt.Sprintf("--host-path %q is not absolute: use the mount path of the kubelet's pods directory, such as %s", o.HostPath, api.HostPodsMount))
	}
	return wrong
}

func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q is not a number from 0 to 65535", port)
	}
	return nil
}
