package deploy

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// MoverAccountName is the optional ServiceAccount of movers and maintenance jobs. Velero runs both with the
	// ServiceAccount of its server, which has all rights.
	MoverAccountName = "lateen-mover"
	// MoverAccountFlag names the ServiceAccount of movers and maintenance jobs.
	MoverAccountFlag = "--mover-service-account"
	// AllNamespaces in Copies.From selects every namespace.
	AllNamespaces = "*"
)

// RBAC returns the ServiceAccount of the agents in Velero's namespace, with exactly the permissions they need.
func RBAC(namespace string) []runtime.Object { return read("base/rbac.yaml", namespace) }

// NamespaceRules are all permissions of the agent in Velero's namespace.
func NamespaceRules() []rbacv1.PolicyRule { return first[*rbacv1.Role](RBAC(DefaultNamespace)).Rules }

// ClusterRules are all permissions of the agent outside Velero's namespace.
func ClusterRules() []rbacv1.PolicyRule {
	return first[*rbacv1.ClusterRole](RBAC(DefaultNamespace)).Rules
}

// Movers configure the ServiceAccount of movers. The zero value leaves movers with that of Velero's server.
type Movers struct {
	Account     bool              // create MoverAccountName, and have agents use it
	Secrets     []string          // that movers may read besides the repository password: those of the backup storage locations
	Annotations map[string]string // of the ServiceAccount, such as the role of a cloud provider
}

// MoverAccess returns the ServiceAccount of movers in Velero's namespace with exactly the permissions they need.
func MoverAccess(namespace string, movers Movers) []runtime.Object {
	if !movers.Account {
		return nil
	}
	all := read("components/movers/rbac.yaml", namespace)
	first[*corev1.ServiceAccount](all).Annotations = movers.Annotations
	if len(movers.Secrets) > 0 {
		role := first[*rbacv1.Role](all)
		role.Rules = append(role.Rules, rule("secrets", movers.Secrets, "get"))
	}
	return all
}

// Copies are the names of the Secrets and ConfigMaps that agents may copy into Velero's namespace for CSI drivers,
// and the source namespaces. No default role lets an agent read a Secret.
type Copies struct {
	Secrets, ConfigMaps []string
	From                []string
}

// CopyAccess returns the RBAC objects that let the agents in Velero's namespace copy exactly these objects. A patch lets
// transfers share a copy. With the admission plugin OwnerReferencesPermissionEnforcement, a change of owners also needs the
// delete verb. RBAC cannot restrict create to a name: PodPolicies do. Without these, agents can read every Secret there
// anyway, in a pod that they create.
func CopyAccess(namespace string, copies Copies) []runtime.Object {
	var target, source []rbacv1.PolicyRule
	for _, each := range []struct {
		resource string
		names    []string
	}{{"secrets", copies.Secrets}, {"configmaps", copies.ConfigMaps}} {
		if len(each.names) > 0 {
			target = append(target, rule(each.resource, nil, "create"), rule(each.resource, each.names, "get", "patch", "delete"))
			source = append(source, rule(each.resource, each.names, "get"))
		}
	}
	if len(target) == 0 {
		return nil
	}
	names := CopyAccessNames(namespace)
	all := copyRole(namespace, namespace, names[0], target)
	if slices.Contains(copies.From, AllNamespaces) {
		base := RBAC(namespace)
		role, binding := first[*rbacv1.ClusterRole](base), first[*rbacv1.ClusterRoleBinding](base)
		role.Name, role.Rules, binding.Name, binding.RoleRef.Name = names[1], source, names[1], names[1]
		return append(all, role, binding)
	}
	for _, from := range copies.From {
		all = append(all, copyRole(namespace, from, names[1], source)...)
	}
	return all
}

// CopyAccessNames returns the names of the roles and bindings of CopyAccess: first those in Velero's namespace, then
// those in the source namespaces.
func CopyAccessNames(namespace string) []string {
	return []string{ServiceAccountName + "-copies", clusterName(namespace) + "-copies"}
}

// copyRole returns a Role for the agents in Velero's namespace, and its binding.
func copyRole(velero, namespace, name string, rules []rbacv1.PolicyRule) []runtime.Object {
	base := RBAC(velero)
	role, binding := first[*rbacv1.Role](base), first[*rbacv1.RoleBinding](base)
	role.Namespace, role.Name, role.Rules = namespace, name, rules
	binding.Namespace, binding.Name, binding.RoleRef.Name = namespace, name, name
	return []runtime.Object{role, binding}
}

// rule allows verbs for objects of the core group; without names, for all.
func rule(resource string, names []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
}
