// Package rights compares what the agents' ServiceAccount may do with what it did. It never talks to a cluster: it
// reads rules and the records of an audit log.
package rights

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/lateen-project/lateen/test/cluster"
)

// Grant is one thing that a rule allows.
type Grant struct {
	Elsewhere bool   // outside the agents' own namespace: in another one, in all of them, or where there is none
	Verb      string // such as get
	Group     string // empty: the core group
	Resource  string // with its subresource, such as pods/log
	Name      string // the only object that is meant; empty: any
}

// String is the grant as a message has it.
func (g Grant) String() string {
	where := "in the agents' namespace"
	if g.Elsewhere {
		where = "elsewhere"
	}
	description := []string{g.Verb, g.Resource}
	if g.Group != "" {
		description[1] += "." + g.Group
	}
	if g.Name != "" {
		description = append(description, g.Name)
	}
	return strings.Join(append(description, where), " ")
}

// Grants are all that the rules allow: those of the Role in the agents' namespace, those of the ClusterRole elsewhere. What the ClusterRole
// allows in the agents' namespace too has to be in the Role as well, so that each of the two lists is complete for its place.
func Grants(role, clusterRole []rbacv1.PolicyRule) []Grant {
	return append(grants(role, false), grants(clusterRole, true)...)
}

func grants(rules []rbacv1.PolicyRule, elsewhere bool) []Grant {
	var all []Grant
	for _, rule := range rules {
		for _, part := range validation.BreakdownRule(rule) {
			grant := Grant{Elsewhere: elsewhere, Verb: part.Verbs[0], Group: part.APIGroups[0], Resource: part.Resources[0]}
			if len(part.ResourceNames) > 0 {
				grant.Name = part.ResourceNames[0]
			}
			all = append(all, grant)
		}
	}
	return all
}

// fallback are the verbs that a request of a verb falls back to, so that an account with the one needs the other even if
// no test made the API server refuse: an informer lists where the API server cannot stream the list in a watch (KEP-3157).
var fallback = map[string][]string{"watch": {"list"}}

// Unused are the grants that no request of a ServiceAccount called account has used, in whichever namespace it lives.
// What became of a request that was allowed does not matter.
func Unused(grants []Grant, account string, requests cluster.Records) []Grant {
	used := map[Grant]bool{}
	for _, request := range requests {
		grant, ours := grantOf(request, account)
		if !ours || request.Forbidden() {
			continue
		}
		for _, verb := range append(fallback[grant.Verb], grant.Verb) {
			grant.Verb = verb
			used[grant] = true
			named := grant
			named.Name = request.Name
			used[named] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(grants), func(grant Grant) bool { return used[grant] })
}

// Missing are the grants that requests of a ServiceAccount called account need and do not have. What the ClusterRole allows holds
// in the agents' namespace too.
func Missing(grants []Grant, account string, requests cluster.Records) (missing []Grant) {
	for _, request := range requests {
		grant, ours := grantOf(request, account)
		if ours && grant.Resource != "" && !slices.ContainsFunc(grants, func(has Grant) bool {
			return has.Verb == grant.Verb && has.Group == grant.Group && has.Resource == grant.Resource &&
				(has.Elsewhere || !grant.Elsewhere) && (has.Name == "" || has.Name == request.Name)
		}) {
			missing = append(missing, grant)
		}
	}
	return missing
}

// grantOf is the grant that a request needs, without a name; ours is false for another account.
func grantOf(request cluster.Record, account string) (grant Grant, ours bool) {
	home, name, _ := strings.Cut(strings.TrimPrefix(request.User, "system:serviceaccount:"), ":")
	grant = Grant{Elsewhere: request.Namespace != home, Verb: request.Verb, Group: request.APIGroup, Resource: request.Resource}
	if request.Subresource != "" {
		grant.Resource += "/" + request.Subresource
	}
	return grant, name == account
}
