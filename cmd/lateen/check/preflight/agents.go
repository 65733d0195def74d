package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/truncate"
)

// agents are the DaemonSets of agents; nil if one does not exist.
type agents struct {
	linux, windows *appsv1.DaemonSet
	labelled       bool // a pod of theirs has said that it is Lateen's: its arguments may be those of Velero's agent
}

// argsOf returns the arguments of the agents of a DaemonSet, and whether Velero's program gets them.
func (a agents) argsOf(set *appsv1.DaemonSet) (args []string, velero bool, err error) {
	args, velero, err = deploy.AgentArgs(set.Spec.Template)
	return args, velero && !a.labelled, err
}

// account returns the ServiceAccount of Lateen's agents; empty if there are none.
func (a agents) account() string {
	if a.linux == nil {
		return ""
	}
	if _, velero, err := a.argsOf(a.linux); velero || err != nil {
		return ""
	}
	return a.linux.Spec.Template.Spec.ServiceAccountName
}

func (i *Installation) readAgents(ctx context.Context) (found agents, err error) {
	for name, into := range map[string]**appsv1.DaemonSet{api.DaemonSetName: &found.linux, api.WindowsDaemonSetName: &found.windows} {
		read, err := i.Kube.AppsV1().DaemonSets(i.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return found, fmt.Errorf("get daemonset %s: %w", name, err)
		}
		*into = read
	}
	pods, err := i.Kube.CoreV1().Pods(i.Namespace).List(ctx, metav1.ListOptions{LabelSelector: api.LabelAgent + "=true"})
	if err != nil {
		return found, fmt.Errorf("list pods of Lateen's agents: %w", err)
	}
	found.labelled = len(pods.Items) > 0
	return found, nil
}

// agents checks that agents run on all nodes. Volumes of pods on a node without an agent are not backed up.
func (i *Installation) agents(ctx context.Context, found agents) Finding {
	f := Finding{Check: "agents", Status: OK}
	if found.linux == nil {
		f.Status, f.Message = i.absent(), fmt.Sprintf("DaemonSet %s does not exist in namespace %s", api.DaemonSetName, i.Namespace)
		f.Remedy = "lateen install creates it; name another namespace with -n"
		return f
	}
	nodes, err := i.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return unknown(f.Check, fmt.Errorf("list nodes: %w", err))
	}
	linux, windows := bySystem(nodes.Items)
	messages := []string{}
	note := func(status Status, message, remedy string) {
		messages = append(messages, message)
		worse := map[Status]int{OK: 0, Warning: 1, Unknown: 2, Failed: 3}
		if worse[status] > worse[f.Status] {
			f.Status, f.Remedy = status, remedy
		}
	}
	for _, each := range []*appsv1.DaemonSet{found.linux, found.windows} {
		if each != nil {
			of := i.rollout(ctx, found, each, nodes.Items)
			note(of.Status, of.Message, of.Remedy)
		}
	}
	if status := found.linux.Status; status.DesiredNumberScheduled == 0 && len(linux) > 0 {
		note(Failed, "no node has an agent", "change the node selector or the tolerations of the DaemonSet")
	}
	if blocked := cli.FormatBlocked(found.linux.Spec.Template.Spec, linux); blocked != "" {
		note(Warning, "no agent on some nodes: "+blocked, "if pods with volumes run there, add tolerations or change the node selector of the DaemonSet")
	}
	if len(windows) > 0 && found.windows == nil {
		note(Warning, fmt.Sprintf("no agent on Windows: DaemonSet %s does not exist", api.WindowsDaemonSetName), "lateen install --use-node-agent-windows creates it")
	}
	f.Message = strings.Join(messages, "; ")
	return f
}

// rollout checks the pods of one DaemonSet.
func (i *Installation) rollout(ctx context.Context, found agents, set *appsv1.DaemonSet, nodes []corev1.Node) Finding {
	_, velero, err := found.argsOf(set)
	if err != nil {
		return Finding{Status: Failed, Message: fmt.Sprintf("DaemonSet %s: %v", set.Name, err), Remedy: "lateen adopt changes only agents of Velero and Lateen"}
	}
	ready, down, err := (&cli.Client{Kube: i.Kube, Namespace: i.Namespace}).RolledOut(ctx, set, metav1.FormatLabelSelector(set.Spec.Selector), cli.UnreadyNodes(nodes))
	if err != nil {
		return unknown("", fmt.Errorf("list pods of daemonset %s: %w", set.Name, err))
	}
	status := set.Status
	f := Finding{Status: OK, Message: fmt.Sprintf("DaemonSet %s of %s: %d of %d pods ready", set.Name, map[bool]string{true: "Velero", false: "Lateen"}[velero],
		status.NumberReady, status.DesiredNumberScheduled)}
	switch {
	case ready+len(down) < int(status.DesiredNumberScheduled), status.ObservedGeneration < set.Generation:
		f.Status = Failed
		f.Remedy = fmt.Sprintf("kubectl -n %s describe pods shows why; kubectl -n %s rollout status daemonset %s waits", i.Namespace, i.Namespace, set.Name)
	case len(down) > 0:
		f.Status, f.Remedy = Warning, "their agents follow when they are Ready"
		f.Message += "; not Ready: node " + truncate.Names(down, most)
	case velero && !i.Before:
		f.Status, f.Remedy = Warning, "lateen adopt replaces them; lateen check --pre checks before"
	}
	return f
}

func bySystem(nodes []corev1.Node) (linux, windows []corev1.Node) {
	for _, node := range nodes {
		if node.Labels[corev1.LabelOSStable] == string(corev1.Windows) {
			windows = append(windows, node)
		} else {
			linux = append(linux, node)
		}
	}
	return linux, windows
}

func readyNodes(nodes []corev1.Node) map[string]bool {
	ready := map[string]bool{}
	for index := range nodes {
		ready[nodes[index].Name] = objects.IsReady(&nodes[index])
	}
	return ready
}

// rights checks every permission that the agents need.
func (i *Installation) rights(ctx context.Context, account string) Finding {
	f := Finding{Check: "rights", Status: OK}
	var missing []string
	count := 0
	for namespace, rules := range map[string][]rbacv1.PolicyRule{i.Namespace: deploy.NamespaceRules(), metav1.NamespaceAll: deploy.ClusterRules()} {
		for _, right := range rightsOf(rules, namespace) {
			allowed, err := Allowed(ctx, i.Kube, i.Namespace, account, &right)
			if err != nil {
				return unknown(f.Check, err)
			}
			if count++; !allowed {
				missing = append(missing, formatRight(right))
			}
		}
	}
	f.Message = fmt.Sprintf("ServiceAccount %s has the %d permissions of agents", account, count)
	if len(missing) > 0 {
		slices.Sort(missing)
		f.Status, f.Message = Failed, fmt.Sprintf("ServiceAccount %s may not %s", account, truncate.Names(missing, most))
		f.Remedy = "run lateen adopt or lateen install --apply again, or apply the manifests of this version of Lateen"
	}
	return f
}

// rightsOf lists what rules allow, one by one.
func rightsOf(rules []rbacv1.PolicyRule, namespace string) []authorizationv1.ResourceAttributes {
	var all []authorizationv1.ResourceAttributes
	for _, rule := range rules {
		for _, one := range validation.BreakdownRule(rule) {
			resource, subresource, _ := strings.Cut(one.Resources[0], "/")
			name := strings.Join(one.ResourceNames, "") // one or none
			all = append(all, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: one.Verbs[0], Group: one.APIGroups[0], Resource: resource, Subresource: subresource, Name: name})
		}
	}
	return all
}

func formatRight(right authorizationv1.ResourceAttributes) string {
	resource := right.Resource
	if right.Subresource != "" {
		resource += "/" + right.Subresource
	}
	if right.Group != "" {
		resource += "." + right.Group
	}
	description := right.Verb + " " + resource
	if right.Name != "" {
		description += " " + right.Name
	}
	if right.Namespace == metav1.NamespaceAll {
		return description + " in all namespaces"
	}
	return description
}

// Identity returns the user and the groups of a ServiceAccount.
func Identity(namespace, account string) (user string, groups []string) {
	return "system:serviceaccount:" + namespace + ":" + account, []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
}

// Allowed asks the API server whether a ServiceAccount has a permission.
func Allowed(ctx context.Context, client kubernetes.Interface, namespace, account string, right *authorizationv1.ResourceAttributes) (bool, error) {
	user, groups := Identity(namespace, account)
	review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups, ResourceAttributes: right},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review the agents' access: %w", err)
	}
	return review.Status.Allowed, nil
}

// hasHostPath reports whether agents search for volumes in the kubelet's directory, or will after their adoption.
func hasHostPath(found agents) bool {
	if found.linux == nil {
		return false
	}
	args, velero, err := found.argsOf(found.linux)
	if velero {
		return deploy.HostPathArgs(found.linux.Spec.Template) != nil
	}
	return err == nil && slices.ContainsFunc(args, func(arg string) bool { return arg == "--host-path" || strings.HasPrefix(arg, "--host-path=") })
}
