package deploy

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
