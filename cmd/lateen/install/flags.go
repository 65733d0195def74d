package install

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/deploy"
)

// options are the flags of `lateen install`. Those that `velero install` in Velero 1.18 also has, which has more, have
// the same name and meaning. Only --use-node-agent and the agent's resources have other defaults.
type options struct {
	cluster cli.Flags
	server  deploy.Velero
	agent   deploy.Options

	secretFile, caCertFile  string
	noSecret, snapshots     bool
	useNodeAgent            bool
	serverPod, agentPod     quantities
	features                string
	fsBackup, moveSnapshots bool
	maintain                time.Duration
	frequencyGiven          bool // agent.MaintenanceFrequency was set, maybe to 0

	output                        cli.Format
	apply, dryRun, crdsOnly, wait bool
	timeout                       time.Duration
}

// quantities are the requests and limits of a pod, as given by flags.
type quantities struct{ cpuRequest, cpuLimit, memRequest, memLimit string }

func (o *options) addFlags(flags *pflag.FlagSet) {
	o.cluster.Add(flags)
	o.addStorageFlags(flags)
	o.addPodFlags(flags)
	o.addServerFlags(flags)
	flags.BoolVar(&o.apply, "apply", false, "update an existing installation, with server-side apply")
	flags.BoolVar(&o.dryRun, "dry-run", false, "change nothing in the cluster; use with -o")
	flags.BoolVar(&o.crdsOnly, "crds-only", false, "install only Velero's CustomResourceDefinitions")
	flags.BoolVar(&o.wait, "wait", false, "wait until server and agents are ready")
	flags.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long the installation may take")
	o.output.AddFlag(flags, "print the objects: json or yaml")
}

func (o *options) addStorageFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.server.Provider, "provider", "", "provider of backup and volume storage")
	flags.StringVar(&o.server.Bucket, "bucket", "", "bucket of the backup storage location")
	flags.StringVar(&o.server.Prefix, "prefix", "", "prefix of backups in the bucket")
	flags.StringVar(&o.secretFile, "secret-file", "", "file with the credentials of the provider; required unless --no-secret is set")
	flags.BoolVar(&o.noSecret, "no-secret", false, "do not create a Secret")
	flags.StringVar(&o.caCertFile, "cacert", "", "file with the CA certificates of the object store")
	flags.BoolVar(&o.server.NoLocation, "no-default-backup-location", false, "do not create a default backup storage location")
	flags.StringToStringVar(&o.server.LocationConfig, "backup-location-config", nil, "configuration of the backup storage location: key1=value1,key2=value2")
	flags.StringToStringVar(&o.server.SnapshotConfig, "snapshot-location-config", nil, "configuration of the volume snapshot location: key1=value1,key2=value2")
	flags.BoolVar(&o.snapshots, "use-volume-snapshots", true, "create a default volume snapshot location")
}

func (o *options) addPodFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.server.Image, "image", deploy.VeleroImage, "image of Velero, for the server and for movers")
	flags.StringVar(&o.agent.Image, "lateen-image", "", "image of Lateen, for the agents")
	flags.StringToStringVar(&o.server.Annotations, "pod-annotations", nil, "annotations of the pods of server and agents: key1=value1,key2=value2")
	flags.StringToStringVar(&o.server.Labels, "pod-labels", nil, "labels of the pods of server and agents: key1=value1,key2=value2")
	flags.StringToStringVar(&o.server.ServiceAccountAnnotations, "sa-annotations", nil, "annotations of the ServiceAccounts of server and movers: key1=value1,key2=value2")
	flags.StringVar(&o.server.Account, "service-account-name", "", "existing ServiceAccount for server and movers, with RBAC rules; agents have their own")
	cli.AddMoverFlags(flags, &o.agent.Movers, &o.agent.PodPolicy)
	o.serverPod.addFlags(flags, "velero-pod", "the server's pod", quantities{cpuRequest: "500m", cpuLimit: "1000m", memRequest: "128Mi", memLimit: "512Mi"})
	o.agentPod.addFlags(flags, "node-agent-pod", "an agent's pod", quantities{cpuRequest: "20m", cpuLimit: "0", memRequest: "64Mi", memLimit: "512Mi"})
	flags.StringVar(&o.server.PriorityClass, "server-priority-class-name", "", "priority class of the server's Deployment")
	flags.StringVar(&o.agent.PriorityClass, "node-agent-priority-class-name", "", "priority class of the agents' DaemonSet")
	flags.StringVar(&o.agent.KubeletRoot, "kubelet-root-dir", deploy.DefaultKubeletRoot, "root directory of the kubelet")
	flags.BoolVar(&o.useNodeAgent, "use-node-agent", true, "create the DaemonSet of Lateen's agents")
	flags.BoolVar(&o.agent.Windows, "use-node-agent-windows", false, "also create the DaemonSet of Lateen's agents for Windows nodes; --lateen-image must support both systems")
	flags.BoolVar(&o.agent.HostPath, "node-agent-host-path", false, "search volumes in the kubelet's pods directory, as root; otherwise agents derive the paths")
}

func (q *quantities) addFlags(flags *pflag.FlagSet, prefix, of string, usual quantities) {
	flags.StringVar(&q.cpuRequest, prefix+"-cpu-request", usual.cpuRequest, "CPU request of "+of+`; "0" for none`)
	flags.StringVar(&q.memRequest, prefix+"-mem-request", usual.memRequest, "memory request of "+of+`; "0" for none`)
	flags.StringVar(&q.cpuLimit, prefix+"-cpu-limit", usual.cpuLimit, "CPU limit of "+of+`; "0" for none`)
	flags.StringVar(&q.memLimit, prefix+"-mem-limit", usual.memLimit, "memory limit of "+of+`; "0" for none`)
}

func (o *options) addServerFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&o.maintain, "default-repo-maintain-frequency", 0, "default maintenance interval of repositories")
	flags.DurationVar(&o.agent.MaintenanceFrequency, "repo-maintenance-frequency", 0, "maintenance interval of all repositories, for the agents; sets the server's interval to a year (default: that of each repository)")
	flags.StringSliceVar(&o.server.Plugins, "plugins", nil, "images of the server's plugins")
	flags.StringVar(&o.features, "features", "", "Velero's feature flags for server and agents, separated by commas")
	flags.BoolVar(&o.fsBackup, "default-volumes-to-fs-backup", false, "back up pod volumes by file system unless a backup overrides it")
	flags.BoolVar(&o.moveSnapshots, "default-snapshot-move-data", false, "move snapshot data unless a backup overrides it")
	flags.StringVar(&o.agent.NodeAgentConfigMap, "node-agent-configmap", "", "ConfigMap with the node-agent configuration")
	flags.StringVar(&o.agent.BackupRepositoryConfigMap, "backup-repository-configmap", "", "ConfigMap with the configuration of backup repositories")
	flags.StringVar(&o.agent.MaintenanceConfigMap, "repo-maintenance-job-configmap", "", "ConfigMap with the configuration of maintenance jobs")
	cli.AddCopyFlags(flags, &o.agent.Copies)
}

// validate rejects contradicting flags, as `velero install` does.
func (o *options) validate() error {
	switch {
	case o.dryRun && (o.apply || o.wait):
		return errors.New("--dry-run changes nothing: remove --apply and --wait")
	case o.crdsOnly:
		return nil
	case o.useNodeAgent && o.agent.Image == "":
		return errors.New("--lateen-image is missing: no image of Lateen is published, so build one with the Dockerfile and push it to a registry of the nodes (or install no agents with --use-node-agent=false)")
	case cli.ValidateMovers(o.agent.Movers, o.agent.PodPolicy) != nil:
		return cli.ValidateMovers(o.agent.Movers, o.agent.PodPolicy)
	case o.agent.Movers.Account && !o.useNodeAgent:
		return errors.New("--restrict-movers requires agents: remove --use-node-agent=false")
	case o.agent.PodPolicy != "" && !o.useNodeAgent:
		return errors.New("--pod-policy requires agents: remove --use-node-agent=false")
	case o.agent.Windows && !o.useNodeAgent:
		return errors.New("--use-node-agent-windows requires agents on Linux nodes: remove --use-node-agent=false")
	case cli.ValidateCopies(o.agent.Copies) != nil:
		return cli.ValidateCopies(o.agent.Copies)
	case len(o.agent.Copies.From) > 0 && !o.useNodeAgent:
		return errors.New("--copy-from requires agents: remove --use-node-agent=false")
	case o.fsBackup && !o.useNodeAgent:
		return errors.New("--default-volumes-to-fs-backup requires agents: remove --use-node-agent=false")
	case o.secretFile == "" && !o.noSecret:
		return errors.New("--secret-file or --no-secret is missing: name the file with the credentials of the provider, or confirm that none is needed")
	case o.secretFile != "" && o.noSecret:
		return errors.New("--secret-file and --no-secret exclude each other: remove one")
	case o.maintain < 0 || o.agent.MaintenanceFrequency < 0:
		return errors.New("--default-repo-maintain-frequency and --repo-maintenance-frequency cannot be negative: use a positive duration, such as 1h")
	case o.maintain > 0 && o.agent.MaintenanceFrequency > 0:
		return errors.New("--repo-maintenance-frequency sets the server's interval to a year, so it excludes --default-repo-maintain-frequency: remove one")
	case o.agent.MaintenanceFrequency > 0 && !o.useNodeAgent:
		return errors.New("--repo-maintenance-frequency requires agents: remove --use-node-agent=false")
	}
	return o.validateStorage()
}

func (o *options) validateStorage() error {
	v := o.server
	switch {
	case strings.HasPrefix(v.Bucket, "-"):
		return fmt.Errorf("--bucket=%s begins with a dash: its value seems to be missing", v.Bucket)
	case v.NoLocation && (v.Bucket != "" || v.Prefix != "" || len(v.LocationConfig) > 0):
		return errors.New("--bucket, --prefix and --backup-location-config have no location: remove them or --no-default-backup-location")
	case !v.NoLocation && v.Provider == "":
		return errors.New("--provider is missing: set it, or --no-default-backup-location")
	case !v.NoLocation && v.Bucket == "":
		return errors.New("--bucket is missing: set it, or --no-default-backup-location")
	case o.snapshots && v.Provider == "":
		return errors.New("--provider is missing: set it, or --use-volume-snapshots=false")
	case !o.snapshots && len(v.SnapshotConfig) > 0:
		return errors.New("--snapshot-location-config has no location: remove it or --use-volume-snapshots=false")
	case v.NoLocation && !o.snapshots && v.Provider != "":
		return errors.New("--provider has no location: remove it, or enable a location")
	case (!v.NoLocation || o.snapshots) && len(v.Plugins) == 0:
		return errors.New("--plugins is missing: name the image of the provider's plugin")
	}
	return nil
}

// complete reads the files and converts flags to the options of package deploy.
func (o *options) complete() (err error) {
	o.server.Namespace, o.agent.Namespace = o.cluster.Namespace, o.cluster.Namespace
	o.server.NoSnapshots = !o.snapshots
	o.agent.Labels, o.agent.Annotations, o.agent.Features = o.server.Labels, o.server.Annotations, o.features
	o.agent.Movers.Annotations = o.server.ServiceAccountAnnotations // a role of the cloud provider is the movers' too
	o.server.Args = o.serverArgs()
	if o.secretFile != "" {
		if o.server.Credentials, err = os.ReadFile(o.secretFile); err != nil {
			return fmt.Errorf("read --secret-file: %w", err)
		}
	}
	if o.caCertFile != "" {
		if o.server.CACert, err = os.ReadFile(o.caCertFile); err != nil {
			return fmt.Errorf("read --cacert: %w", err)
		}
	}
	if o.server.Resources, err = o.serverPod.parse("velero-pod"); err != nil {
		return err
	}
	agent, err := o.agentPod.parse("node-agent-pod")
	o.agent.Resources = &agent
	return err
}

// serverArgs returns the arguments of `velero server`. It omits settings with their default.
func (o *options) serverArgs() []string {
	var args []string
	add := func(given bool, flag, value string) {
		if given {
			args = append(args, "--"+flag+"="+value)
		}
	}
	add(o.features != "", "features", o.features)
	add(o.fsBackup, "default-volumes-to-fs-backup", "true")
	add(o.moveSnapshots, "default-snapshot-move-data", "true")
	add(true, "uploader-type", "kopia")
	add(o.maintain > 0, "default-repo-maintain-frequency", o.maintain.String())
	add(o.agent.MaintenanceFrequency > 0, "default-repo-maintain-frequency", serverWaits.String())
	add(o.agent.BackupRepositoryConfigMap != "", "backup-repository-configmap", o.agent.BackupRepositoryConfigMap)
	add(o.agent.MaintenanceConfigMap != "", "repo-maintenance-job-configmap", o.agent.MaintenanceConfigMap)
	return args
}

// parse parses the quantities. The prefix of their flags appears in errors.
func (q quantities) parse(prefix string) (corev1.ResourceRequirements, error) {
	parsed := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for _, flag := range []struct {
		suffix, text string
		list         corev1.ResourceList
		name         corev1.ResourceName
	}{
		{"cpu-request", q.cpuRequest, parsed.Requests, corev1.ResourceCPU},
		{"mem-request", q.memRequest, parsed.Requests, corev1.ResourceMemory},
		{"cpu-limit", q.cpuLimit, parsed.Limits, corev1.ResourceCPU},
		{"mem-limit", q.memLimit, parsed.Limits, corev1.ResourceMemory},
	} {
		amount, err := resource.ParseQuantity(flag.text)
		if err != nil {
			return parsed, fmt.Errorf("--%s-%s=%s is not a quantity: use one such as 500m or 128Mi, or 0", prefix, flag.suffix, flag.text)
		}
		if !amount.IsZero() {
			flag.list[flag.name] = amount
		}
	}
	for name, request := range parsed.Requests {
		if most, limited := parsed.Limits[name]; limited && request.Cmp(most) > 0 {
			return parsed, fmt.Errorf("%s request %[3]s of --%[2]s-… exceeds limit %[4]s: lower the request or raise the limit", name, prefix, &request, &most)
		}
	}
	return parsed, nil
}
