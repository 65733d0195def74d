// Package preflight checks whether a cluster has what agents and movers need, before and after Lateen runs in it. It changes
// nothing: it creates pods only as a dry run.
package preflight

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/truncate"
)

// Status is the result of one check.
type Status string

// The results. A cluster with a failed check moves no data, or not for every volume that it should. What causes a warning
// may be intended.
const (
	OK      Status = "ok"
	Warning Status = "warning"
	Failed  Status = "failed"
	Unknown Status = "unknown" // it could not be checked
)

// Finding is the result of one check.
type Finding struct {
	Check   string `json:"check"`            // definitions, server, agents, rights, movers, snapshots, host-paths or clocks
	Status  Status `json:"status"`           // ok, warning, failed or unknown
	Message string `json:"message"`          // for people
	Remedy  string `json:"remedy,omitempty"` // what to do; absent if nothing is to be done
}

// Installation is what is checked.
type Installation struct {
	Kube      kubernetes.Interface
	Dynamic   dynamic.Interface
	Namespace string             // of Velero
	Server    *appsv1.Deployment // of Velero; nil if there is none
	Movers    objects.Template   // image and ServiceAccount of movers; no image: unknown
	Settings  objects.Settings   // of movers
	Before    bool               // Lateen does not run yet
}

// Run runs all checks that apply. It never fails: what could not be read is Unknown.
func (i *Installation) Run(ctx context.Context) []Finding {
	agents, err := i.daemonSets(ctx)
	if err != nil {
		return []Finding{unknown("agents", err)}
	}
	all := []Finding{i.definitions(ctx), i.server(), i.agents(ctx, agents)}
	if len(agents) > 0 && !isVeleros(agents[0]) {
		all = append(all, i.rights(ctx, agents[0].Spec.Template.Spec.ServiceAccountName))
	}
	var now time.Time
	if i.Movers.Image != "" {
		var found Finding
		found, now = i.movers(ctx)
		all = append(all, found)
	}
	all = append(all, i.snapshots(ctx))
	if !i.hasHostPath(agents) {
		all = append(all, i.hostPaths(ctx))
	}
	if !now.IsZero() {
		all = append(all, i.clocks(ctx, now))
	}
	return all
}

func unknown(check string, err error) Finding {
	return Finding{Check: check, Status: Unknown, Message: err.Error()}
}

// most is the number of names that a message lists.
const most = 5

// definitions checks that the API server serves the resources that agents act on.
func (i *Installation) definitions(ctx context.Context) Finding {
	f := Finding{Check: "definitions", Status: OK}
	wanted := map[string]string{"backuprepositories.velero.io": velerov1.SchemeGroupVersion.Version}
	for _, kind := range api.Kinds() {
		wanted[kind.CRD()] = kind.GVK.Version
	}
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		found, err := i.Dynamic.Resource(cli.Definitions()).Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return unknown(f.Check, fmt.Errorf("get definition %s: %w", name, err))
		}
		if err != nil || !serves(found, wanted[name]) {
			missing = append(missing, name+" "+wanted[name])
		}
	}
	f.Message = fmt.Sprintf("the API server serves the %d resources of node-agents", len(wanted))
	if len(missing) > 0 {
		f.Status, f.Message = Failed, "not served: "+truncate.Names(missing, len(wanted))
		f.Remedy = "lateen install --crds-only creates Velero's definitions"
	}
	return f
}

func serves(definition *unstructured.Unstructured, version string) bool {
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	return slices.ContainsFunc(versions, func(each any) bool {
		fields, _ := each.(map[string]any)
		return fields["name"] == version && fields["served"] == true
	})
}

func isVeleros(agents *appsv1.DaemonSet) bool {
	_, velero, err := deploy.AgentArgs(agents.Spec.Template)
	return err == nil && velero
}

// server checks that Velero's server runs. It creates the transfers and waits for them.
func (i *Installation) server() Finding {
	f := Finding{Check: "server", Status: OK}
	switch {
	case i.Server == nil:
		f.Status, f.Message = Failed, "no Deployment in namespace "+i.Namespace+" runs Velero's server"
		f.Remedy = "name its namespace with -n; lateen install installs a server"
	case i.Server.Status.AvailableReplicas == 0:
		f.Status, f.Message = Failed, "Deployment "+i.Server.Name+" has no available pod"
		f.Remedy = fmt.Sprintf("kubectl -n %s describe pods shows why", i.Namespace)
	default:
		f.Message = "Deployment " + i.Server.Name + " is available"
	}
	return f
}

// daemonSets reads the DaemonSets of the agents, that of Linux first.
func (i *Installation) daemonSets(ctx context.Context) ([]*appsv1.DaemonSet, error) {
	var all []*appsv1.DaemonSet
	for _, name := range []string{api.DaemonSetName, api.WindowsDaemonSetName} {
		found, err := i.Kube.AppsV1().DaemonSets(i.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get daemonset %s: %w", name, err)
		}
		all = append(all, found)
	}
	return all, nil
}

// agents checks that agents run on all nodes. Volumes of pods on a node without an agent are not backed up.
func (i *Installation) agents(ctx context.Context, agents []*appsv1.DaemonSet) Finding {
	f := Finding{Check: "agents", Status: OK}
	if len(agents) == 0 {
		f.Status, f.Message, f.Remedy = Failed, "DaemonSet "+api.DaemonSetName+" does not exist", "lateen install creates it"
		if i.Before {
			f.Status = Warning
		}
		return f
	}
	nodes, err := i.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return unknown(f.Check, fmt.Errorf("list nodes: %w", err))
	}
	var messages []string
	for _, each := range agents {
		_, velero, err := deploy.AgentArgs(each.Spec.Template)
		if err != nil {
			f.Status, f.Message = Failed, fmt.Sprintf("DaemonSet %s: %v", each.Name, err)
			f.Remedy = "lateen adopt changes only agents of Velero and Lateen"
			return f
		}
		whose := map[bool]string{true: "Velero", false: "Lateen"}[velero]
		status := each.Status
		messages = append(messages, fmt.Sprintf("DaemonSet %s of %s: %d of %d pods ready", each.Name, whose, status.NumberReady, status.DesiredNumberScheduled))
		switch {
		case status.ObservedGeneration < each.Generation || min(status.UpdatedNumberScheduled, status.NumberReady) < status.DesiredNumberScheduled:
			f.Status, f.Remedy = Failed, fmt.Sprintf("kubectl -n %s rollout status daemonset %s waits for them; kubectl -n %s describe pods shows why", i.Namespace, each.Name, i.Namespace)
		case velero && !i.Before && f.Status == OK:
			f.Status, f.Remedy = Warning, "lateen adopt replaces them; lateen check --pre checks before"
		}
	}
	if blocked := cli.FormatBlocked(agents[0].Spec.Template.Spec, linux(nodes.Items)); blocked != "" {
		messages = append(messages, "no agent for volumes of pods on some nodes: "+blocked)
		if f.Status == OK {
			f.Status, f.Remedy = Warning, "if pods with volumes run there, add tolerations or change the node selector of the DaemonSet"
		}
	}
	f.Message = strings.Join(messages, "; ")
	return f
}

func linux(nodes []corev1.Node) []corev1.Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(node corev1.Node) bool { return node.Labels[corev1.LabelOSStable] == string(corev1.Windows) })
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
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				resource, subresource, _ := strings.Cut(resource, "/")
				for _, verb := range rule.Verbs {
					for _, name := range names {
						all = append(all, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: subresource, Name: name})
					}
				}
			}
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

// Allowed asks the API server whether a ServiceAccount has a permission.
func Allowed(ctx context.Context, client kubernetes.Interface, namespace, account string, right *authorizationv1.ResourceAttributes) (bool, error) {
	review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + namespace + ":" + account,
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
			ResourceAttributes: right,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review the agents' access: %w", err)
	}
	return review.Status.Allowed, nil
}

// movers checks with dry runs that the API server accepts movers: Pod Security, quota, LimitRange, policies and webhooks may
// refuse them. It also returns the time of the API server.
func (i *Installation) movers(ctx context.Context) (Finding, time.Time) {
	f := Finding{Check: "movers", Status: OK, Message: "the API server accepts movers of snapshots and of pod volumes"}
	creator := exposer.Exposer{Client: i.Kube, Templates: map[corev1.OSName]objects.Template{corev1.Linux: i.Movers}}
	creator.SetSettings(i.Settings)
	var refused []string
	var now time.Time
	for _, kind := range []api.Kind{api.DataUpload(), api.PodVolumeBackup()} {
		created, err := creator.TryMover(ctx, i.Namespace, kind)
		if err == nil {
			now = created.CreationTimestamp.Time
			continue
		}
		refused = append(refused, fmt.Sprintf("of a %s: %v", kind.GVK.Kind, err))
	}
	if len(refused) > 0 {
		f.Status, f.Message, f.Remedy = Failed, "the API server refuses the mover "+strings.Join(refused, "; "), "change what refuses it: Pod Security, quota, LimitRange, a policy or a webhook"
		if strings.Contains(f.Message, "violates PodSecurity") {
			f.Remedy = fmt.Sprintf("kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged", i.Namespace)
		}
	}
	return f, now
}

// snapshots checks which storage classes Velero can take CSI snapshots of. It selects the class of the snapshot by driver; of
// several, that with the label or the annotation for defaults, else the only one (Velero's pkg/util/csi
// GetVolumeSnapshotClassForStorageClass).
func (i *Installation) snapshots(ctx context.Context) Finding {
	f := Finding{Check: "snapshots", Status: OK}
	storage, err := i.Kube.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return unknown(f.Check, fmt.Errorf("list storage classes: %w", err))
	}
	classes, err := i.Dynamic.Resource(snapshotClasses()).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		f.Status, f.Message = Warning, "the API server does not serve VolumeSnapshotClasses: only file system backups are possible"
		f.Remedy = "for CSI snapshots, install the snapshot-controller with its CustomResourceDefinitions"
		return f
	}
	if err != nil {
		return unknown(f.Check, fmt.Errorf("list volume snapshot classes: %w", err))
	}
	count, selected := map[string]int{}, map[string]bool{}
	for _, class := range classes.Items {
		driver, _, _ := unstructured.NestedString(class.Object, "driver")
		count[driver]++
		_, labelled := class.GetLabels()[velerov1.VolumeSnapshotClassSelectorLabel]
		_, annotated := class.GetAnnotations()[velerov1.VolumeSnapshotClassKubernetesAnnotation]
		selected[driver] = selected[driver] || labelled || annotated
	}
	var with, without, ambiguous []string
	for _, class := range storage.Items {
		switch driver := class.Provisioner; {
		case count[driver] == 0:
			without = append(without, class.Name)
		case count[driver] > 1 && !selected[driver]:
			ambiguous = append(ambiguous, class.Name)
		default:
			with = append(with, class.Name)
		}
	}
	var messages, remedies []string
	if len(with) > 0 {
		messages = append(messages, "CSI snapshots of storage class "+truncate.Names(with, most))
	}
	if len(without) > 0 {
		messages = append(messages, "no VolumeSnapshotClass for the driver of storage class "+truncate.Names(without, most))
		remedies = append(remedies, "create one, if the driver has snapshots, or use file system backups for their volumes")
	}
	if len(ambiguous) > 0 {
		messages = append(messages, "several VolumeSnapshotClasses for the driver of storage class "+truncate.Names(ambiguous, most))
		remedies = append(remedies, "set label "+velerov1.VolumeSnapshotClassSelectorLabel+"=true on one of them")
	}
	if f.Message, f.Remedy = cmp.Or(strings.Join(messages, "; "), "the cluster has no storage class"), strings.Join(remedies, "; "); f.Remedy != "" {
		f.Status = Warning
	}
	return f
}

func snapshotClasses() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotclasses"}
}

// hasHostPath reports whether agents search for volumes in the kubelet's directory, or will after their adoption.
func (i *Installation) hasHostPath(agents []*appsv1.DaemonSet) bool {
	if len(agents) == 0 {
		return false
	}
	if isVeleros(agents[0]) {
		return deploy.HostPathArgs(agents[0].Spec.Template) != nil
	}
	args, _, err := deploy.AgentArgs(agents[0].Spec.Template)
	return err == nil && slices.ContainsFunc(args, func(arg string) bool { return arg == "--host-path" || strings.HasPrefix(arg, "--host-path=") })
}

// hostPaths checks that agents can derive the directory of every persistent volume.
func (i *Installation) hostPaths(ctx context.Context) Finding {
	f := Finding{Check: "host-paths", Status: OK}
	volumes, err := i.Kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return unknown(f.Check, fmt.Errorf("list persistent volumes: %w", err))
	}
	var underived []string
	for index := range volumes.Items {
		if _, err := (objects.PodVolume{Pod: &corev1.Pod{}, Bound: &volumes.Items[index]}).HostDir(); err != nil {
			underived = append(underived, volumes.Items[index].Name)
		}
	}
	f.Message = fmt.Sprintf("agents derive the directories of all %d persistent volumes", len(volumes.Items))
	if len(underived) > 0 {
		f.Status, f.Message = Warning, "agents cannot derive the directory of persistent volume "+truncate.Names(underived, most)
		f.Remedy = "for file system backups of volumes other than hostPath and local, add --host-path to the agents (lateen install --node-agent-host-path)"
	}
	return f
}

// clocks compares the clocks of the nodes with that of the API server. A mover reports its progress by the clock of its node.
// A kubelet renews its Lease every 10 seconds, and its node is Ready for 40 after that (KEP-589).
func (i *Installation) clocks(ctx context.Context, now time.Time) Finding {
	const (
		tolerated = 10 * time.Second
		behind    = 60 * time.Second
	)
	f := Finding{Check: "clocks", Status: OK}
	nodes, err := i.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return unknown(f.Check, fmt.Errorf("list nodes: %w", err))
	}
	leases, err := i.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return unknown(f.Check, fmt.Errorf("list leases of nodes: %w", err))
	}
	ready := map[string]bool{}
	for _, node := range nodes.Items {
		ready[node.Name] = slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
			return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
		})
	}
	var wrong []string
	compared := 0
	for _, lease := range leases.Items {
		if !ready[lease.Name] || lease.Spec.RenewTime == nil {
			continue
		}
		compared++
		switch ahead := lease.Spec.RenewTime.Sub(now); {
		case ahead > tolerated:
			wrong = append(wrong, fmt.Sprintf("%s (%s ahead)", lease.Name, ahead.Round(time.Second)))
		case -ahead > behind:
			wrong = append(wrong, fmt.Sprintf("%s (up to %s behind)", lease.Name, (-ahead).Round(time.Second)))
		}
	}
	f.Message = fmt.Sprintf("the clocks of %d Ready nodes agree with that of the API server", compared)
	if len(wrong) > 0 {
		f.Status, f.Message, f.Remedy = Warning, "the clock differs from that of the API server on node "+truncate.Names(wrong, most), "synchronize the clocks: progress and timeouts of transfers are wrong"
	}
	return f
}
