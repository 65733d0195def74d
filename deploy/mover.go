package deploy

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/exposer/api"
)

const (
	// MoverAccountName is the optional ServiceAccount of movers and maintenance jobs. Velero runs both with the
	// ServiceAccount of its server, which has all rights.
	MoverAccountName = "lateen-mover"
	// MoverAccountFlag names the ServiceAccount of movers and maintenance jobs.
	MoverAccountFlag = "--mover-service-account"
	// repositorySecret has the password of all repositories (Velero's pkg/repository/keys).
	repositorySecret = "velero-repo-credentials"
)

// Movers configure the ServiceAccount of movers. The zero value leaves movers with that of Velero's server.
type Movers struct {
	Account     bool              // create MoverAccountName, and have agents use it
	Secrets     []string          // that movers may read besides the repository password: those of the backup storage locations
	Annotations map[string]string // of the ServiceAccount, such as the role of a cloud provider
}

// MoverRules are all permissions of the movers and maintenance jobs of Velero's image. Secrets that a pod mounts need
// none: the kubelet reads them.
func MoverRules(secrets ...string) []rbacv1.PolicyRule {
	var transfers []rbacv1.PolicyRule
	for _, kind := range api.Kinds() {
		// A mover waits until its transfer is InProgress, and watches it for a cancel.
		transfers = append(transfers, rule(kind.GVK.Group, kind.Resource, "get", "list", "watch"))
	}
	rules := append(transfers,
		// The first backup of a namespace creates its repository.
		rule("velero.io", "backuprepositories", "list", "create"),
		rule("velero.io", "backupstoragelocations", "get"),
		// Progress and results.
		rule("", "events", "create", "patch"),
		only(rule("", "secrets", "get"), repositorySecret),
	)
	if len(secrets) > 0 {
		rules = append(rules, only(rule("", "secrets", "get"), secrets...))
	}
	return rules
}

// MoverAccess returns the ServiceAccount of movers in Velero's namespace with exactly the permissions they need.
func MoverAccess(namespace string, movers Movers) []runtime.Object {
	if !movers.Account {
		return nil
	}
	account, granted, binding := serviceAccount(namespace), role(namespace), roleBinding(namespace)
	account.Name, account.Annotations = MoverAccountName, movers.Annotations
	granted.Name, granted.Rules = MoverAccountName, MoverRules(movers.Secrets...)
	binding.Name, binding.RoleRef.Name = MoverAccountName, MoverAccountName
	binding.Subjects = []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: MoverAccountName}}
	return []runtime.Object{account, granted, binding}
}
