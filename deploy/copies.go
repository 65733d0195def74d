package deploy

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AllNamespaces in Copies.From selects every namespace.
const AllNamespaces = "*"

// Copies are the names of the Secrets and ConfigMaps that agents may copy into Velero's namespace for CSI drivers,
// and the source namespaces. No default role lets an agent read a Secret.
type Copies struct {
	Secrets, ConfigMaps []string
	From                []string
}

// CopyAccess returns the RBAC objects that let the agents in Velero's namespace copy exactly these objects.
func CopyAccess(namespace string, copies Copies) []runtime.Object {
	if len(copies.Secrets)+len(copies.ConfigMaps) == 0 {
		return nil
	}
	names := CopyAccessNames(namespace)
	target, source := names[0], names[1]
	all := copyRole(namespace, namespace, target, copies.targetRules())
	if slices.Contains(copies.From, AllNamespaces) {
		everywhere, binding := clusterRole(namespace), clusterRoleBinding(namespace)
		everywhere.Name, everywhere.Rules = source, copies.sourceRules()
		binding.Name, binding.RoleRef.Name = source, source
		return append(all, everywhere, binding)
	}
	for _, from := range copies.From {
		all = append(all, copyRole(namespace, from, source, copies.sourceRules())...)
	}
	return all
}

// CopyAccessNames returns the names of the roles and bindings of CopyAccess: first those in Velero's namespace, then
// those in the source namespaces.
func CopyAccessNames(namespace string) []string {
	return []string{ServiceAccountName + "-copies", clusterName(namespace) + "-copies"}
}

// targetRules are the rules for Velero's namespace. A patch lets transfers share a copy. With the admission plugin
// OwnerReferencesPermissionEnforcement, a change of owners also needs the delete verb. RBAC cannot restrict create to
// a name: PodPolicies do. Without these, agents can read every Secret there anyway, in a pod that they create.
func (c Copies) targetRules() []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	if len(c.Secrets) > 0 {
		rules = append(rules, rule("", "secrets", "create"), only(rule("", "secrets", "get", "patch", "delete"), c.Secrets...))
	}
	if len(c.ConfigMaps) > 0 {
		rules = append(rules, rule("", "configmaps", "create"), only(rule("", "configmaps", "get", "patch", "delete"), c.ConfigMaps...))
	}
	return rules
}

// sourceRules are the rules for the namespaces of volumes.
func (c Copies) sourceRules() []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	if len(c.Secrets) > 0 {
		rules = append(rules, only(rule("", "secrets", "get"), c.Secrets...))
	}
	if len(c.ConfigMaps) > 0 {
		rules = append(rules, only(rule("", "configmaps", "get"), c.ConfigMaps...))
	}
	return rules
}

// copyRole returns a Role for the agents in Velero's namespace, and its binding.
func copyRole(velero, namespace, name string, rules []rbacv1.PolicyRule) []runtime.Object {
	granted, binding := role(namespace), roleBinding(namespace)
	granted.Name, granted.Rules = name, rules
	binding.Name, binding.RoleRef.Name, binding.Subjects = name, name, subjects(velero)
	return []runtime.Object{granted, binding}
}
