// Package deploy makes the typed objects of a Lateen installation. It is pure: it talks to no API
// server, reads no flags, and imports nothing else of Lateen.
package deploy

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// ServiceAccountName is the identity of every agent, and of nothing else: movers run as Velero's.
	ServiceAccountName = "lateen"
	// DaemonSetName and RoleLabel are how Velero's server finds out that a cluster has a node-agent
	// before it makes pod volume backups (Velero's pkg/nodeagent looks the DaemonSet up by this name
	// and its pods by this label).
	DaemonSetName = "node-agent"
	// RoleLabel is set on the agent's pods, with DaemonSetName as its value.
	RoleLabel = "role"
	// VeleroDeployment is the name that `velero install` gives to Velero's server.
	VeleroDeployment = "velero"
)

// Options is what differs between installations.
type Options struct {
	Namespace          string // Velero's namespace; Lateen lives in it
	Image              string // the image of this repository's Dockerfile
	NodeAgentConfigMap string // name of Velero's node-agent ConfigMap; empty: Velero's defaults
	KubeletRoot        string // the kubelet's --root-dir; empty: /var/lib/kubelet
	HostPath           bool   // find volumes by looking under the kubelet's pods directory, as uid 0
}

// Installation is one set of objects, in the order in which to create them.
type Installation struct {
	ServiceAccount     *corev1.ServiceAccount
	Role               *rbacv1.Role
	RoleBinding        *rbacv1.RoleBinding
	ClusterRole        *rbacv1.ClusterRole
	ClusterRoleBinding *rbacv1.ClusterRoleBinding
	DaemonSet          *appsv1.DaemonSet
}

// New makes the objects for o. Names of cluster-wide objects carry the namespace, so that
// installations in two namespaces of one cluster do not share rights.
func New(o Options) Installation {
	return Installation{
		ServiceAccount:     serviceAccount(o.Namespace),
		Role:               role(o.Namespace),
		RoleBinding:        roleBinding(o.Namespace),
		ClusterRole:        clusterRole(o.Namespace),
		ClusterRoleBinding: clusterRoleBinding(o.Namespace),
		DaemonSet:          daemonSet(o),
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
