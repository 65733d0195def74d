// Package deploy makes the typed objects of an installation. It is pure: it talks to no API server, reads no
// flags, and imports nothing else of Lateen.
package deploy

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// ServiceAccountName is the identity of every agent, and of nothing else: movers run as Velero's.
	ServiceAccountName = "lateen"
	// DaemonSetName and RoleLabel are how Velero's server finds out that a cluster has a node-agent
	// before it makes pod volume backups (Velero's pkg/nodeagent looks the DaemonSet up by this name
	// and its pods by this label).
	DaemonSetName = "node-agent"
	// WindowsDaemonSetName is the same on Windows nodes.
	WindowsDaemonSetName = "node-agent-windows"
	// RoleLabel is set on the agent's pods, with DaemonSetName as its value.
	RoleLabel = "role"
	// VeleroDeployment is the name that `velero install` gives to Velero's server.
	VeleroDeployment = "velero"
	// CoordinatorLease is held by the one agent that does what belongs to no node.
	CoordinatorLease = "lateen-coordinator"
)

// Options is what differs between installations of Lateen's agent.
type Options struct {
	Namespace                 string                       // Velero's namespace; Lateen lives in it
	Image                     string                       // the image of this repository's Dockerfile
	NodeAgentConfigMap        string                       // name of Velero's node-agent ConfigMap; empty: Velero's defaults
	BackupRepositoryConfigMap string                       // name of the ConfigMap that Velero's server has too; empty: Velero's defaults
	MaintenanceConfigMap      string                       // name of the ConfigMap of maintenance jobs; empty: defaults
	MaintenanceFrequency      time.Duration                // of every repository; 0: each has its own
	KubeletRoot               string                       // the kubelet's --root-dir; empty: /var/lib/kubelet
	HostPath                  bool                         // find volumes by looking under the kubelet's pods directory, as uid 0
	Windows                   bool                         // agents on Windows nodes too; the image has to be for both
	PriorityClass             string                       // of the agent's pods; empty: the cluster's default
	Features                  string                       // Velero's feature flags, separated by commas
	Labels, Annotations       map[string]string            // of the agent's pods, besides those that they must have
	Resources                 *corev1.ResourceRequirements // of the agent's container; nil: DefaultResources
}

// Objects are all objects of Lateen's agent, in the order in which to create them.
func Objects(o Options) []runtime.Object {
	all := append(RBAC(o.Namespace), networkPolicy(o.Namespace), daemonSet(o))
	if o.Windows {
		all = append(all, windowsDaemonSet(o))
	}
	return all
}

// RBAC are the objects that let an agent in Velero's namespace do its work, and no more: its
// ServiceAccount and the rights of it. Names of cluster-wide objects carry the namespace, so that
// installations in two namespaces of one cluster do not share rights.
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

// meta carries the label by which Velero's own objects are found, so that uninstalling Velero's way
// removes ours too.
func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace,
		Name:      name,
		Labels:    map[string]string{"component": "velero", "app.kubernetes.io/part-of": "lateen"},
	}
}

// with is what a user wants and what must be; where both name something, what must be wins.
func with(wanted, must map[string]string) map[string]string {
	all := maps.Clone(wanted)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, must)
	return all
}

// scraped are the annotations by which a Prometheus that is configured so finds pods, as `velero install` has
// them on the server's.
func scraped() map[string]string {
	return map[string]string{
		"prometheus.io/scrape": "true", "prometheus.io/port": "8085", "prometheus.io/path": "/metrics",
	}
}
