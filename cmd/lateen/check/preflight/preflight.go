// Package preflight checks whether a cluster has what agents and movers need, before and after Lateen runs in it. It changes
// nothing: it creates pods only as a dry run.
package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
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
	As        func(account string) (kubernetes.Interface, error) // a client with the identity of a ServiceAccount in the namespace
	Namespace string                                             // of Velero
	Server    *appsv1.Deployment                                 // of Velero; nil if there is none
	PodsDir   string                                             // the kubelet's; empty for the default
	Movers    objects.Template                                   // image and ServiceAccount of movers; no image: unknown
	Settings  objects.Settings                                   // of movers
	Before    bool                                               // Lateen does not run yet
}

// Run runs all checks that apply. It never fails: what could not be read is Unknown.
func (i *Installation) Run(ctx context.Context) []Finding {
	found, err := i.readAgents(ctx)
	all := []Finding{i.definitions(ctx), i.server()}
	if err != nil {
		all = append(all, unknown("agents", err))
	} else {
		all = append(all, i.agents(ctx, found))
	}
	account := found.account()
	if account != "" {
		all = append(all, i.rights(ctx, account))
	}
	if i.Movers.Image != "" {
		all = append(all, i.movers(ctx, account))
	}
	all = append(all, i.snapshots(ctx))
	if !hasHostPath(found) {
		all = append(all, i.hostPaths(ctx))
	}
	return append(all, i.clocks(ctx))
}

func unknown(check string, err error) Finding {
	return Finding{Check: check, Status: Unknown, Message: err.Error()}
}

// most is the number of names that a message lists.
const most = 5

// repositories is the definition of BackupRepositories.
const repositories = "backuprepositories.velero.io"

// definitionsOfAgents returns the version of each resource that agents act on, by its definition.
func definitionsOfAgents() map[string]string {
	wanted := map[string]string{repositories: velerov1.SchemeGroupVersion.Version}
	for _, kind := range api.Kinds() {
		wanted[kind.CRD()] = kind.GVK.Version
	}
	return wanted
}

// Definitions returns the resources that agents act on and that the API server does not serve, and the definitions that are older than
// Velero 1.17: they have PodVolumeBackups without spec.cancel and without the phases of node-agents.
func Definitions(ctx context.Context, client dynamic.Interface) (missing, old []string, err error) {
	wanted := definitionsOfAgents()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		found, err := client.Resource(cli.Definitions()).Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, nil, fmt.Errorf("get definition %s: %w", name, err)
		}
		version := served(found, wanted[name])
		_, cancels, _ := unstructured.NestedFieldNoCopy(version, "schema", "openAPIV3Schema", "properties", "spec", "properties", "cancel")
		switch {
		case version == nil:
			missing = append(missing, name+" "+wanted[name])
		case !cancels && name != repositories:
			old = append(old, name)
		}
	}
	return missing, old, nil
}

func (i *Installation) definitions(ctx context.Context) Finding {
	f := Finding{Check: "definitions", Status: OK}
	missing, old, err := Definitions(ctx, i.Dynamic)
	if err != nil {
		return unknown(f.Check, err)
	}
	var messages []string
	wanted := len(definitionsOfAgents())
	if len(missing) > 0 {
		messages = append(messages, "not served: "+truncate.Names(missing, wanted))
		f.Status, f.Remedy = i.absent(), "lateen install creates Velero's definitions, also alone with --crds-only"
	}
	if len(old) > 0 {
		messages = append(messages, "older than those of Velero 1.17: "+truncate.Names(old, wanted))
		f.Status, f.Remedy = Failed, "lateen install --crds-only --apply updates Velero's definitions"
	}
	f.Message = cmp.Or(strings.Join(messages, "; "), fmt.Sprintf("the API server serves the %d resources of node-agents", wanted))
	return f
}

// absent returns the status of what lateen install creates.
func (i *Installation) absent() Status {
	if i.Before {
		return Warning
	}
	return Failed
}

// served returns a version of a definition if the API server serves it, else nil.
func served(definition *unstructured.Unstructured, version string) map[string]any {
	if definition == nil {
		return nil
	}
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, each := range versions {
		if fields, _ := each.(map[string]any); fields["name"] == version && fields["served"] == true {
			return fields
		}
	}
	return nil
}

// server checks that Velero's server runs. It creates the transfers and waits for them.
func (i *Installation) server() Finding {
	f := Finding{Check: "server", Status: OK}
	switch {
	case i.Server == nil:
		f.Status, f.Message = i.absent(), "no Deployment in namespace "+i.Namespace+" runs Velero's server"
		f.Remedy = "name its namespace with -n; lateen install installs a server"
	case i.Server.Status.AvailableReplicas == 0:
		f.Status, f.Message = Failed, "Deployment "+i.Server.Name+" has no available pod"
		f.Remedy = fmt.Sprintf("kubectl -n %s describe pods shows why", i.Namespace)
	default:
		f.Message = "Deployment " + i.Server.Name + " is available"
	}
	return f
}

// movers checks with dry runs that the API server accepts movers: Pod Security, quota, LimitRange, policies and webhooks may
// refuse them. What they decide may depend on the account, so the pods are those of Lateen's agents, if these run.
func (i *Installation) movers(ctx context.Context, account string) Finding {
	f := Finding{Check: "movers", Status: OK, Message: "the API server accepts movers of snapshots and of pod volumes"}
	if account != "" && i.As != nil {
		client, err := i.As(account)
		if err != nil {
			return unknown(f.Check, err)
		}
		if err := i.try(ctx, client, api.DataUpload()); err == nil || !strings.Contains(err.Error(), "cannot impersonate") {
			return i.refusals(ctx, f, client)
		}
	}
	f.Message += ", tried as this user"
	review, err := i.Kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: i.Namespace, Verb: "create", Resource: "pods"}},
	}, metav1.CreateOptions{})
	if err != nil {
		return unknown(f.Check, fmt.Errorf("review the access of this user: %w", err))
	}
	if !review.Status.Allowed {
		return unknown(f.Check, errors.New("a dry run needs the right to create pods"))
	}
	return i.refusals(ctx, f, i.Kube)
}

func (i *Installation) try(ctx context.Context, client kubernetes.Interface, kind api.Kind) error {
	creator := exposer.Exposer{Client: client, Paths: exposer.HostPaths{PodsDir: i.PodsDir}, Templates: map[corev1.OSName]objects.Template{corev1.Linux: i.Movers}}
	creator.SetSettings(i.Settings)
	_, err := creator.TryMover(ctx, i.Namespace, kind)
	return err
}

// refusals returns the finding with what is refused. A cluster may do without file system backups, and a quota that is used up
// delays movers only.
func (i *Installation) refusals(ctx context.Context, f Finding, client kubernetes.Interface) Finding {
	var refused []string
	for _, kind := range []api.Kind{api.PodVolumeBackup(), api.DataUpload()} {
		err := i.try(ctx, client, kind)
		if err == nil {
			continue
		}
		if cli.Transient(err) {
			return unknown(f.Check, fmt.Errorf("dry run of a mover: %w", err))
		}
		refused = append(refused, fmt.Sprintf("of a %s: %v", kind.GVK.Kind, err))
		if f.Status = Warning; kind.Name == api.DataUpload().Name && !strings.Contains(err.Error(), "exceeded quota") {
			f.Status = Failed
		}
	}
	if len(refused) == 0 {
		return f
	}
	f.Message, f.Remedy = "the API server refuses the mover "+strings.Join(refused, "; "), "change what refuses it: Pod Security, quota, LimitRange, a policy or a webhook"
	if strings.Contains(f.Message, "violates PodSecurity") {
		f.Remedy = fmt.Sprintf("kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged", i.Namespace)
	}
	return f
}

// snapshots checks which storage classes Velero can take CSI snapshots of. It selects the class of the snapshot by driver; of
// several, that with the label or the annotation for defaults, else the only one (Velero's pkg/util/csi
// GetVolumeSnapshotClassForStorageClass).
func (i *Installation) snapshots(ctx context.Context) Finding {
	f := Finding{Check: "snapshots", Status: OK}
	if i.Server != nil && !strings.Contains(startup.FlagOf(i.Server.Spec.Template.Spec.Containers, "--features"), velerov1.CSIFeatureFlag) {
		f.Status, f.Message = Warning, "Velero's server takes no CSI snapshots"
		f.Remedy = "for CSI snapshots, add --features=" + velerov1.CSIFeatureFlag + " to the arguments of Deployment " + i.Server.Name
		return f
	}
	storage, err := i.Kube.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return unknown(f.Check, fmt.Errorf("list storage classes: %w", err))
	}
	classes, err := i.Dynamic.Resource(snapshotClasses()).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		f.Status, f.Message = Warning, "the API server does not serve VolumeSnapshotClasses: no CSI snapshots are possible"
		f.Remedy = "for CSI snapshots, install the snapshot-controller with its CustomResourceDefinitions"
		return f
	}
	if err != nil {
		return unknown(f.Check, fmt.Errorf("list volume snapshot classes: %w", err))
	}
	return selectClasses(f, storage.Items, classes.Items)
}

// selectClasses returns the finding about these storage classes and VolumeSnapshotClasses.
func selectClasses(f Finding, storage []storagev1.StorageClass, classes []unstructured.Unstructured) Finding {
	count, selected := map[string]int{}, map[string]bool{}
	for _, class := range classes {
		driver, _, _ := unstructured.NestedString(class.Object, "driver")
		count[driver]++
		_, labelled := class.GetLabels()[velerov1.VolumeSnapshotClassSelectorLabel]
		_, annotated := class.GetAnnotations()[velerov1.VolumeSnapshotClassKubernetesAnnotation]
		selected[driver] = selected[driver] || labelled || annotated
	}
	var with, without, ambiguous []string
	for _, class := range storage {
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

// clocks compares the clocks of the Ready nodes with that of the API server, which dates a ConfigMap of a dry run. A mover
// reports its progress by the clock of its node. A kubelet renews its Lease every 10 seconds, and its node is Ready for 40 or 50
// after that (KEP-589).
func (i *Installation) clocks(ctx context.Context) Finding {
	const (
		ahead  = 10 * time.Second
		behind = 60 * time.Second
	)
	f := Finding{Check: "clocks", Status: OK}
	nodes, err := i.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return unknown(f.Check, fmt.Errorf("list nodes: %w", err))
	}
	dryRun := func(namespace string) (*corev1.ConfigMap, error) {
		return i.Kube.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "lateen-dry-run-"}},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	created, err := dryRun(i.Namespace)
	if apierrors.IsNotFound(err) { // Velero is not installed yet
		created, err = dryRun(metav1.NamespaceDefault)
	}
	if err != nil {
		return unknown(f.Check, fmt.Errorf("ask the API server for its time with a dry run: %w", err))
	}
	leases, err := i.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return unknown(f.Check, fmt.Errorf("list leases of nodes: %w", err))
	}
	now, ready := created.CreationTimestamp.Time, readyNodes(nodes.Items)
	var wrong []string
	compared := 0
	for _, lease := range leases.Items {
		if !ready[lease.Name] || lease.Spec.RenewTime == nil {
			continue
		}
		compared++
		switch difference := lease.Spec.RenewTime.Sub(now); {
		case difference > ahead:
			wrong = append(wrong, fmt.Sprintf("%s (%s ahead)", lease.Name, difference.Round(time.Second)))
		case -difference > behind:
			wrong = append(wrong, fmt.Sprintf("%s (up to %s behind)", lease.Name, (-difference).Round(time.Second)))
		}
	}
	f.Message = fmt.Sprintf("the clocks of %d Ready nodes agree with that of the API server", compared)
	if len(wrong) > 0 {
		f.Status, f.Message, f.Remedy = Warning, "the clock differs from that of the API server on node "+truncate.Names(wrong, most), "synchronize the clocks: progress and timeouts of transfers are wrong"
	}
	return f
}
