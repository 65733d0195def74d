package deploy

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/exposer/api"
)

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

// NamespaceRules are all permissions of the agent in Velero's namespace: to watch transfers, to create and delete
// their movers and the objects of these, and to read its configuration. Creating a pod there includes the use of any
// ServiceAccount of that namespace, as movers need it.
func NamespaceRules() []rbacv1.PolicyRule {
	var transfers []rbacv1.PolicyRule
	for _, kind := range api.Kinds() {
		// Patches write phase, progress and finalizer. The server creates transfers, and deletes them with their backup or
		// restore.
		transfers = append(transfers, rule(kind.GVK.Group, kind.Resource, "list", "watch", "patch"))
	}
	return append(transfers,
		// With --finished-ttl: transfers whose backup or restore is done.
		rule("velero.io", "backups", "get"),
		rule("velero.io", "restores", "get"),
		rule("velero.io", "datauploads", "delete"),
		rule("velero.io", "datadownloads", "delete"),
		// Movers. A dry run is a create. A patch adopts a mover of Velero's own agent.
		rule("", "pods", "get", "list", "watch", "create", "delete", "patch"),
		// The log of a failed mover.
		rule("", "pods/log", "get"),
		// Volumes of backups and restores, and caches.
		rule("", "persistentvolumeclaims", "get", "list", "watch", "create", "delete", "patch"),
		// Maintenance: its jobs, and their results in the history of the repository.
		rule("velero.io", "backuprepositories", "list", "watch", "patch"),
		rule("velero.io", "backupstoragelocations", "list", "watch"),
		rule("batch", "jobs", "get", "list", "watch", "create", "delete"),
		// A job that will not finish must count as failed before its deletion, because Velero's server may wait for
		// it.
		rule("batch", "jobs/status", "patch"),
		// Snapshots handed over to this namespace. ClusterRules allow the watch over all namespaces.
		rule("snapshot.storage.k8s.io", "volumesnapshots", "get", "list", "create", "delete", "patch"),
		// Events of movers and claims, and Events for users.
		rule("", "events", "list", "watch", "create", "patch"),
		// The configuration; agents watch the ConfigMap that --node-agent-configmap names. Of workloads, only those that
		// movers inherit from.
		rule("", "configmaps", "get", "list", "watch"),
		only(rule("apps", "daemonsets", "get"), DaemonSetName, WindowsDaemonSetName),
		only(rule("apps", "deployments", "get"), VeleroDeployment),
		// The Lease of the coordinator. RBAC cannot restrict create to a name.
		rule("coordination.k8s.io", "leases", "create"),
		only(rule("coordination.k8s.io", "leases", "get", "list", "watch", "update"), CoordinatorLease),
	)
}

// ClusterRules are all permissions of the agent outside Velero's namespace. Workloads, their claims and their
// snapshots may be in any namespace. The other resources are cluster-scoped.
func ClusterRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		// Pods whose volumes are backed up or restored.
		rule("", "pods", "get", "list", "watch"),
		// Source claims and target claims. The agent watches them one by one. It lists them if the API server cannot
		// start a watch with the current state. A patch binds a target claim to its restored volume.
		rule("", "persistentvolumeclaims", "get", "list", "watch", "patch"),
		// The node affinity of a volume. A patch changes the reclaim policy, and for a restore the claim.
		rule("", "persistentvolumes", "get", "list", "patch"),
		// The original snapshot is deleted only after another content has its handle.
		rule("snapshot.storage.k8s.io", "volumesnapshots", "get", "list", "watch", "delete"),
		rule("snapshot.storage.k8s.io", "volumesnapshotcontents", "get", "list", "watch", "create", "delete", "patch"),
		// The handle of a snapshot that the driver does not find. Without it, its content is never deleted.
		rule("snapshot.storage.k8s.io", "volumesnapshotcontents/status", "patch"),
		// The binding mode of a class, and whether its volumes are usable as caches.
		rule("storage.k8s.io", "storageclasses", "get", "list", "watch"),
		// The nodes to which a vSphere volume is attached.
		rule("storage.k8s.io", "volumeattachments", "list"),
		// Labels and operating system. A coordinator watches single Nodes without a Ready agent, to detect lost
		// workloads. RBAC cannot restrict this to names that are unknown in advance.
		rule("", "nodes", "get", "list", "watch"),
		// Whether the priority class of movers is in force.
		rule("scheduling.k8s.io", "priorityclasses", "get"),
	}
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// only restricts a rule to objects with these names.
func only(r rbacv1.PolicyRule, names ...string) rbacv1.PolicyRule {
	r.ResourceNames = names
	return r
}

func role(namespace string) *rbacv1.Role {
	return &rbacv1.Role{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
		ObjectMeta: meta(namespace, ServiceAccountName),
		Rules:      NamespaceRules(),
	}
}

func roleBinding(namespace string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: meta(namespace, ServiceAccountName),
		Subjects:   subjects(namespace),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: ServiceAccountName},
	}
}

func clusterRole(namespace string) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: meta("", clusterName(namespace)),
		Rules:      ClusterRules(),
	}
}

func clusterRoleBinding(namespace string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: meta("", clusterName(namespace)),
		Subjects:   subjects(namespace),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterName(namespace)},
	}
}

func subjects(namespace string) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: ServiceAccountName}}
}

func clusterName(namespace string) string {
	return ServiceAccountName + "-" + namespace
}

func serviceAccount(namespace string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: meta(namespace, ServiceAccountName),
	}
}
