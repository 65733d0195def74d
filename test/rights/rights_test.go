package rights_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/rights"
)

const agent = "system:serviceaccount:velero:lateen"

func allowed(verb, resource, namespace, name string) cluster.Record {
	return cluster.Record{User: agent, Verb: verb, Resource: resource, Namespace: namespace, Name: name, Code: 200}
}

func refused(r cluster.Record) cluster.Record {
	r.Code, r.Annotations = 403, map[string]string{"authorization.k8s.io/decision": "forbid"}
	return r
}

func rule(resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs}
}

func TestARightIsUsedWhereItIsGiven(t *testing.T) {
	named := rule("configmaps", "get")
	named.ResourceNames = []string{"one", "two"}
	tests := map[string]struct {
		role, clusterRole []rbacv1.PolicyRule
		requests          cluster.Records
		unused            []string
	}{
		"every verb counts on its own": {
			role: []rbacv1.PolicyRule{rule("pods", "get", "delete")}, requests: cluster.Records{allowed("get", "pods", "velero", "a")},
			unused: []string{"delete pods in the agents' namespace"},
		},
		"a request in the namespace is no use of a right elsewhere": {
			clusterRole: []rbacv1.PolicyRule{rule("pods", "list")}, requests: cluster.Records{allowed("list", "pods", "velero", "")},
			unused: []string{"list pods elsewhere"},
		},
		"a request in all namespaces is one elsewhere": {
			role: []rbacv1.PolicyRule{rule("pods", "list")}, clusterRole: []rbacv1.PolicyRule{rule("pods", "list")},
			requests: cluster.Records{allowed("list", "pods", "", "")}, unused: []string{"list pods in the agents' namespace"},
		},
		"each of the names has to be asked for": {
			role: []rbacv1.PolicyRule{named}, requests: cluster.Records{allowed("get", "configmaps", "velero", "one")},
			unused: []string{"get configmaps two in the agents' namespace"},
		},
		"a subresource is another right than its resource": {
			role: []rbacv1.PolicyRule{rule("pods/log", "get")}, requests: cluster.Records{allowed("get", "pods", "velero", "a")},
			unused: []string{"get pods/log in the agents' namespace"},
		},
		"a watch needs the right to list": {
			role: []rbacv1.PolicyRule{rule("nodes", "get", "list", "watch")}, requests: cluster.Records{allowed("watch", "nodes", "velero", "")},
			unused: []string{"get nodes in the agents' namespace"},
		},
		"a list needs no right to watch": {
			role: []rbacv1.PolicyRule{rule("nodes", "list", "watch")}, requests: cluster.Records{allowed("list", "nodes", "velero", "")},
			unused: []string{"watch nodes in the agents' namespace"},
		},
		"what was refused was not used": {
			role: []rbacv1.PolicyRule{rule("pods", "get")}, requests: cluster.Records{refused(allowed("get", "pods", "velero", "a"))},
			unused: []string{"get pods in the agents' namespace"},
		},
		"a request of anybody else does not count": {
			role:     []rbacv1.PolicyRule{rule("pods", "get")},
			requests: cluster.Records{{User: "system:serviceaccount:velero:velero", Verb: "get", Resource: "pods", Namespace: "velero", Code: 200}},
			unused:   []string{"get pods in the agents' namespace"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var unused []string
			for _, grant := range rights.Unused(rights.Grants(test.role, test.clusterRole), "lateen", test.requests) {
				unused = append(unused, grant.String())
			}
			require.Equal(t, test.unused, unused)
		})
	}
}
