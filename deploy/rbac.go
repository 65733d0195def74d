package deploy

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NamespaceRules is all that the agent may do in Velero's namespace: follow the transfers, make and
// remove their movers, and read its configuration. Creating pods there includes running as any
// ServiceAccount of that namespace, which is what a mover has to do.
func NamespaceRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("velero.io", "podvolumebackups", "list", "watch", "patch"),
		rule("", "pods", "get", "list", "watch", "create", "delete", "patch"),
		rule("", "pods/log", "get"),
		rule("", "events", "watch", "create", "patch"),
		rule("", "configmaps", "get"),
		only(rule("apps", "daemonsets", "get"), DaemonSetName),
		only(rule("apps", "deployments", "get"), VeleroDeployment),
	}
}

// ClusterRules is all that the agent may do elsewhere; it reads and never writes. Workloads and their
// claims live in any namespace; the rest has none.
func ClusterRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("", "pods", "get", "list", "watch"),
		rule("", "persistentvolumeclaims", "get"),
		rule("", "persistentvolumes", "get"),
		rule("", "nodes", "get"),
		rule("scheduling.k8s.io", "priorityclasses", "get"),
	}
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// only narrows a rule to one object.
func only(r rbacv1.PolicyRule, name string) rbacv1.PolicyRule {
	r.ResourceNames = []string{name}
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
