package deploy

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Options configure an installation of Lateen's agent.
type Options struct {
	Namespace          string // Velero's namespace, which Lateen shares
	Image              string // the image of this repository's Dockerfile
	NodeAgentConfigMap string // name of Velero's node-agent ConfigMap; empty: Velero's defaults
	// name of the ConfigMap that Velero's server uses too; empty: Velero's defaults
	BackupRepositoryConfigMap string
	MaintenanceConfigMap      string        // name of the ConfigMap of maintenance jobs; empty: defaults
	MaintenanceFrequency      time.Duration // of every repository; 0: each repository's own
	KubeletRoot               string        // the kubelet's --root-dir; empty: /var/lib/kubelet
	HostPath                  bool          // find volumes under the kubelet's pods directory, as uid 0
	// agents on Windows nodes too, with an image for both systems
	Windows             bool
	PriorityClass       string                       // of the agent's pods; empty: the cluster's default
	Features            string                       // Velero's feature flags, separated by commas
	Labels, Annotations map[string]string            // of the agent's pods, besides the required ones
	Resources           *corev1.ResourceRequirements // of the agent's container; nil: DefaultResources
	Movers              Movers
	PodPolicy           string    // restricts what agents create: empty (not), PodPolicyRestricted or PodPolicyPrivileged
	Inherited           Inherited // what PodPolicy allows of Velero's own pods
	Copies              Copies    // what PodPolicy allows agents to copy; CopyAccess has the rights to
}

// Values of Options.PodPolicy.
const (
	PodPolicyRestricted = "restricted" // no privileged containers
	PodPolicyPrivileged = "privileged" // privileged movers of pod volumes, for privilegedFsBackup
)
