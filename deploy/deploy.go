// Package deploy creates the typed objects of an installation. It is pure: it calls no API server, reads no flags,
// and imports only the names of package exposer/api.
package deploy

import (
	"cmp"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// ServiceAccountName is the ServiceAccount of the agents only. Movers use Velero's, or MoverAccountName.
	ServiceAccountName = "lateen"
	// DaemonSetName lets Velero's server detect a node-agent before it creates pod volume backups: its pkg/nodeagent
	// gets the DaemonSet by this name and lists its pods by api.LabelRole.
	DaemonSetName = "node-agent"
	// WindowsDaemonSetName is the DaemonSet of the agents on Windows nodes.
	WindowsDaemonSetName = "node-agent-windows"
	// VeleroDeployment is the name that `velero install` gives to Velero's server.
	VeleroDeployment = "velero"
	// CoordinatorLease is the Lease of the coordinator, the one agent that acts for resources without a node.
	CoordinatorLease = "lateen-coordinator"
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
	PodPolicy           string // restricts what agents create: empty (not), PodPolicyRestricted or PodPolicyPrivileged
}

// Objects returns all objects of Lateen's agent in the order of their creation.
func Objects(o Options) []runtime.Object {
	all := append(RBAC(o.Namespace), MoverAccess(o.Namespace, o.Movers)...)
	all = append(all, podPolicy(o)...)
	all = append(all, flowControl(o.Namespace)...)
	all = append(all, networkPolicy(o.Namespace), daemonSet(o))
	if o.Windows {
		all = append(all, windowsDaemonSet(o))
	}
	return all
}

// RBAC returns the ServiceAccount of the agents in Velero's namespace, with exactly the permissions they need. The
// names of cluster-scoped objects contain the namespace. Two installations in one cluster therefore do not share
// permissions.
func RBAC(namespace string) []runtime.Object {
	return []runtime.Object{
		serviceAccount(namespace),
		role(namespace), roleBinding(namespace),
		clusterRole(namespace), clusterRoleBinding(namespace),
	}
}

func serviceAccount(namespace string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: meta(namespace, ServiceAccountName),
	}
}

// meta sets the label of Velero's own objects, so that Velero's uninstall removes Lateen's objects too.
func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace,
		Name:      name,
		Labels:    map[string]string{"component": "velero", "app.kubernetes.io/part-of": "lateen"},
	}
}

// with merges the user's labels with the required ones. The required value takes precedence.
func with(wanted, must map[string]string) map[string]string {
	all := maps.Clone(wanted)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, must)
	return all
}

// scraped returns the annotations that mark pods for Prometheus by a common convention. `velero install` sets them on
// the server's pods.
func scraped() map[string]string {
	return map[string]string{
		"prometheus.io/scrape": "true", "prometheus.io/port": "8085", "prometheus.io/path": "/metrics",
	}
}

// kubeletRoot returns the root directory of the kubelet.
func (o Options) kubeletRoot() string { return cmp.Or(o.KubeletRoot, DefaultKubeletRoot) }
