package deploy

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NamespaceRules is all that the agent may do in Velero's namespace: follow the transfers, make and
// remove their movers and what these need, and read its configuration. Creating pods there includes running
// as any ServiceAccount of that namespace, which is what a mover has to do.
func NamespaceRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		// Transfers: phase, progress and finalizer go in patches. The server makes and deletes them.
		rule("velero.io", "podvolumebackups", "list", "watch", "patch"),
		rule("velero.io", "podvolumerestores", "list", "watch", "patch"),
		rule("velero.io", "datauploads", "list", "watch", "patch"),
		rule("velero.io", "datadownloads", "list", "watch", "patch"),
		// Movers. A dry run is a create; a patch makes a mover of Velero's own agent ours.
		rule("", "pods", "get", "list", "watch", "create", "delete", "patch"),
		// What a mover that failed had to say.
		rule("", "pods/log", "get"),
		// Volumes that are read or restored into, and caches.
		rule("", "persistentvolumeclaims", "get", "list", "watch", "create", "delete", "patch"),
		// Maintenance: its jobs, and what became of them in the history of their repository.
		rule("velero.io", "backuprepositories", "list", "watch", "patch"),
		rule("velero.io", "backupstoragelocations", "list", "watch"),
		rule("batch", "jobs", "get", "list", "watch", "create", "delete"),
		// A job that will not end has to count as failed before it is deleted: Velero's server may wait for it.
		rule("batch", "jobs/status", "patch"),
		// Snapshots that are handed over, under a name in this namespace. Those of all namespaces are watched.
		rule("snapshot.storage.k8s.io", "volumesnapshots", "get", "list", "create", "delete", "patch"),
		// What movers tell, what is wrong with a claim, and what users are told.
		rule("", "events", "list", "watch", "create", "patch"),
		// The configuration. Of workloads, only those that movers take after.
		rule("", "configmaps", "get"),
		only(rule("apps", "daemonsets", "get"), DaemonSetName, WindowsDaemonSetName),
		only(rule("apps", "deployments", "get"), VeleroDeployment),
		// Which agent is the coordinator. RBAC cannot narrow a create to a name.
		rule("coordination.k8s.io", "leases", "create"),
		only(rule("coordination.k8s.io", "leases", "get", "list", "watch", "update"), CoordinatorLease),
	}
}

// ClusterRules is all that the agent may do elsewhere. Workloads, their claims and the snapshots of them live
// in any namespace; the rest has none.
func ClusterRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		// Pods whose volumes are moved.
		rule("", "pods", "get", "list", "watch"),
		// Claims that are the source, and those into which is restored: these are watched one by one, or
		// listed where an API server does not begin a watch with what there is, and a patch binds them to
		// the restored volume.
		rule("", "persistentvolumeclaims", "get", "list", "watch", "patch"),
		// Where a volume can be reached. A patch changes the reclaim policy, and in a restore the claim.
		rule("", "persistentvolumes", "get", "list", "patch"),
		// The original snapshot is deleted once another content has its handle, and never before.
		rule("snapshot.storage.k8s.io", "volumesnapshots", "get", "list", "watch", "delete"),
		rule("snapshot.storage.k8s.io", "volumesnapshotcontents", "get", "list", "watch", "create", "delete", "patch"),
		// How volumes are bound, and whether those of a class can be caches.
		rule("storage.k8s.io", "storageclasses", "get", "list", "watch"),
		// Which nodes a vSphere volume is attached to.
		rule("storage.k8s.io", "volumeattachments", "list"),
		// Labels and operating system. A coordinator watches single Nodes on which no agent is Ready, to know whether
		// what runs there is lost; RBAC cannot narrow that to names that nobody knows before.
		rule("", "nodes", "get", "list", "watch"),
		// Whether the class of movers is in force.
		rule("scheduling.k8s.io", "priorityclasses", "get"),
	}
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// only narrows a rule to objects of these names.
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
