package startup_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// parsed returns the options from these arguments, without the environment.
func parsed(t *testing.T, arguments ...string) startup.Options {
	t.Helper()
	var options startup.Options
	flags := pflag.NewFlagSet("node-agent", pflag.ContinueOnError)
	options.AddFlags(flags)
	require.NoError(t, flags.Parse(arguments))
	return options
}

func environment(pairs ...string) func(string) string {
	values := map[string]string{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
}

func TestOptionsHaveVelerosDefaults(t *testing.T) {
	options := parsed(t)
	require.NoError(t, options.Complete(environment("NODE_NAME=node-1")))
	require.Equal(t, startup.Options{
		LogLevel: "info", LogFormat: "text", ResourceTimeout: 10 * time.Minute, DataMoverPrepareTimeout: 30 * time.Minute,
		MetricsAddress: ":8085", Namespace: "velero",
		MoverTemplate: "daemonset", MoverRetries: 3, CancelGrace: 5 * time.Minute, StallTimeout: 2 * time.Hour, Workers: 8,
		MaintenanceConcurrency: 3, MaintenanceTimeout: 12 * time.Hour,
		KubeAPIQPS: 100, KubeAPIBurst: 200, StartupTimeout: 30 * time.Second,
		NodeName: "node-1",
	}, options)
}

func TestOptionsAcceptTheArgumentsOfVelerosManifests(t *testing.T) {
	options := parsed(t, "--features=", "--node-agent-configmap=node-agent-config", "--backup-repository-configmap=repo", "--log-level=warning", "--kubeconfig=file", "--kubecontext=lab")
	require.NoError(t, options.Complete(environment("NODE_NAME=node-1", "VELERO_NAMESPACE=backup"), "server"))
	require.True(t, options.AsVelero)
	require.Equal(t, []string{"file", "lab", "node-agent-config", "repo", "warning", "backup"}, []string{
		options.Kubeconfig, options.Kubecontext, options.NodeAgentConfigMap, options.BackupRepositoryConfigMap, options.LogLevel, options.Namespace,
	})
}

func TestTheLeastValuesAreAccepted(t *testing.T) {
	options := parsed(t, "--namespace=flag", "--mover-retries=0", "--workers=1", "--kube-api-burst=1", "--repo-maintenance-timeout=1s", "--repo-maintenance-frequency=0",
		"--repo-maintenance-concurrency=0", "--finished-ttl=0", "--cancel-grace=0", "--resource-timeout=1ns", "--kube-api-qps=0.5",
		"--data-mover-prepare-timeout=1ns", "--startup-timeout=1ns", "--stall-timeout=0")
	require.NoError(t, options.Complete(environment("NODE_NAME=node-1", "VELERO_NAMESPACE=environment")))
	require.Equal(t, "flag", options.Namespace)
	want := transfer.DefaultLimits()
	want.PrepareTimeout, want.CancelGrace, want.StallTimeout, want.Retries = 1, 0, 0, 0
	require.Equal(t, want, options.Limits())
}

func TestEachDocumentedValueIsAccepted(t *testing.T) {
	for flag, values := range map[string][]string{
		"log-level":               {"trace", "debug", "info", "warning", "error", "fatal", "panic"},
		"log-format":              {"text", "json"},
		"mover-template":          {"", "daemonset", "deployment/velero"},
		"metrics-address":         {":8085", "127.0.0.1:0", "[::1]:8085", "localhost:8085"},
		"repo-maintenance-window": {"", "22:00-02:00"},
		"finished-ttl":            {"0", "168h"},
		"stall-timeout":           {"0", "1s", "2h"},
		"mover-image":             {"velero/velero:v1.18.3", "registry.example:5000/velero@sha256:" + strings.Repeat("0", 64)},
	} {
		for _, value := range values {
			options := parsed(t, "--"+flag+"="+value)
			require.NoError(t, options.Complete(environment("NODE_NAME=node-1")), "--%s=%s", flag, value)
		}
	}
}

func TestMaintenanceWindow(t *testing.T) {
	for argument, want := range map[string][2]time.Duration{
		"": {}, "01:00": {}, "01:00-05:30": {time.Hour, 5*time.Hour + 30*time.Minute}, "22:00-02:00": {22 * time.Hour, 2 * time.Hour},
	} {
		options := parsed(t, "--repo-maintenance-window="+argument)
		start, end, err := options.Window()
		require.Equal(t, argument == "01:00", err != nil, argument)
		require.Equal(t, want, [2]time.Duration{start, end}, argument)
	}
}

func TestHostPath(t *testing.T) {
	require.True(t, parsed(t, "--profiling").Profiling)
	require.Empty(t, parsed(t).HostPath)
	require.Equal(t, "/host_pods", parsed(t, "--host-path").HostPath)
	require.Equal(t, "/kubelet/pods", parsed(t, "--host-path=/kubelet/pods").HostPath)
}

func TestCompleteErrorsNameFlagAndRemedy(t *testing.T) {
	for name, test := range map[string]struct {
		arguments   []string
		environment string
		message     []string
	}{
		"without a node name":                            {environment: "NODE_NAME=", message: []string{"NODE_NAME", "spec.nodeName"}},
		"with a node name that cannot be one":            {environment: "NODE_NAME=$(NODE)", message: []string{`NODE_NAME "$(NODE)" is not a valid node name`}},
		"with a namespace that cannot be one":            {arguments: []string{"--namespace=a.b"}, message: []string{"--namespace", "a.b"}},
		"with a ConfigMap that cannot be one":            {arguments: []string{"--node-agent-configmap=Config"}, message: []string{"--node-agent-configmap", "lower case"}},
		"with a repository ConfigMap that cannot be one": {arguments: []string{"--backup-repository-configmap=a b"}, message: []string{"--backup-repository-configmap"}},
		"with a ServiceAccount that cannot be one":       {arguments: []string{"--mover-service-account=system:x"}, message: []string{"--mover-service-account"}},
		"with an image that has a blank":                 {arguments: []string{"--mover-image=velero/velero v1"}, message: []string{"--mover-image", "repository:tag"}},
		"with a template of a kind that is none":         {arguments: []string{"--mover-template=velero"}, message: []string{`--mover-template "velero" is unknown`, "deployment/<name>"}},
		"with a template without a name":                 {arguments: []string{"--mover-template=deployment/"}, message: []string{"--mover-template", "deployment/<name>"}},
		"with negative retries":                          {arguments: []string{"--mover-retries=-1"}, message: []string{"--mover-retries is -1", "0 or more"}},
		"without workers":                                {arguments: []string{"--workers=0"}, message: []string{"--workers is 0", "1 or more"}},
		"without requests":                               {arguments: []string{"--kube-api-qps=0"}, message: []string{"--kube-api-qps", "greater than 0"}},
		"with requests that are not a number":            {arguments: []string{"--kube-api-qps=NaN"}, message: []string{"--kube-api-qps", "greater than 0"}},
		"without burst":                                  {arguments: []string{"--kube-api-burst=0"}, message: []string{"--kube-api-burst"}},
		"without resource timeout":                       {arguments: []string{"--resource-timeout=0s"}, message: []string{"--resource-timeout", "10m"}},
		"with a negative prepare timeout":                {arguments: []string{"--data-mover-prepare-timeout=0s"}, message: []string{"--data-mover-prepare-timeout is 0s"}},
		"without startup timeout":                        {arguments: []string{"--startup-timeout=0s"}, message: []string{"--startup-timeout"}},
		"with a window of one time":                      {arguments: []string{"--repo-maintenance-window=01:00"}, message: []string{`--repo-maintenance-window "01:00" is invalid: `, "22:00-02:00"}},
		"with an empty window":                           {arguments: []string{"--repo-maintenance-window=01:00-01:00"}, message: []string{"two different times"}},
		"with a window at no time of day":                {arguments: []string{"--repo-maintenance-window=20:00-24:00"}, message: []string{"two different times"}},
		"with a window that ends never":                  {arguments: []string{"--repo-maintenance-window=01:00-x"}, message: []string{"two different times"}},
		"with a window that begins never":                {arguments: []string{"--repo-maintenance-window=x-01:00"}, message: []string{"two different times"}},
		"with a job of no time":                          {arguments: []string{"--repo-maintenance-timeout=999ms"}, message: []string{"--repo-maintenance-timeout is 999ms"}},
		"with a negative frequency":                      {arguments: []string{"--repo-maintenance-frequency=-1s"}, message: []string{"--repo-maintenance-frequency is -1s"}},
		"with negative concurrency":                      {arguments: []string{"--repo-maintenance-concurrency=-1"}, message: []string{"--repo-maintenance-concurrency is -1"}},
		"with a short stall":                             {arguments: []string{"--stall-timeout=999ms"}, message: []string{"--stall-timeout is 999ms"}},
		"with a ConfigMap of jobs that cannot be one":    {arguments: []string{"--repo-maintenance-job-configmap=A"}, message: []string{"--repo-maintenance-job-configmap"}},
		"with a negative time to live":                   {arguments: []string{"--finished-ttl=-1h"}, message: []string{"--finished-ttl is -1h0m0s", "168h"}},
		"with a negative grace":                          {arguments: []string{"--cancel-grace=-1s"}, message: []string{"--cancel-grace"}},
		"with a level that Velero has not":               {arguments: []string{"--log-level=loud"}, message: []string{`--log-level "loud"`, "trace, debug, info"}},
		"with a format that Velero has not":              {arguments: []string{"--log-format=xml"}, message: []string{"--log-format", "text or json"}},
		"with an address without a port":                 {arguments: []string{"--metrics-address=localhost"}, message: []string{"--metrics-address", "host:port"}},
		"with a port that is none":                       {arguments: []string{"--metrics-address=:65536"}, message: []string{`--metrics-address ":65536" is invalid (`, "65535"}},
		"with a host path that is not absolute":          {arguments: []string{"--host-path=host_pods"}, message: []string{`--host-path "host_pods"`, "/host_pods"}},
		"with two mistakes, both are named":              {arguments: []string{"--workers=0", "--log-format=xml"}, message: []string{"--workers", "--log-format"}},
	} {
		options := parsed(t, test.arguments...)
		err := options.Complete(environment(cmp.Or(test.environment, "NODE_NAME=node-1")))
		for _, part := range test.message {
			require.ErrorContains(t, err, part, name)
		}
		require.NotContains(t, err.Error(), "\n", name)
	}
}

func TestArgumentsOfVelerosAgents(t *testing.T) {
	velero, lateen := startup.VeleroArgs([]string{
		"node-agent", "server", "--log-level=debug", "--repo-maintenance-frequency=1h", "--cancel-grace", "1m", "--features", "EnableCSI", "-n", "velero", "-x", "1", "-",
	})
	require.Equal(t, []string{"node-agent", "server", "--log-level=debug", "--features", "EnableCSI", "-n", "velero"}, velero)
	require.Equal(t, []string{"--repo-maintenance-frequency=1h", "--cancel-grace", "1m", "-x", "1", "-"}, lateen)
}
