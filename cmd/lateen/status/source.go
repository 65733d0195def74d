package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Resources whose unreadability affects the report.
const (
	locationsName    = "backupstoragelocations.velero.io"
	repositoriesName = "backuprepositories.velero.io"
	podsName         = "pods"
	claimsName       = "persistentvolumeclaims"
	snapshotsName    = "volumesnapshots.snapshot.storage.k8s.io"
	contentsName     = "volumesnapshotcontents.snapshot.storage.k8s.io"
	classesName      = "storageclasses.storage.k8s.io"
	eventsName       = "events"
	leasesName       = "leases.coordination.k8s.io"
	nodesName        = "nodes"
	priorityName     = "priorityclasses.scheduling.k8s.io"
	configsName      = "configmaps"
	agentsName       = "daemonsets.apps"
)

// Clients read the objects of a Snapshot.
type Clients struct {
	kube      kubernetes.Interface
	velero    *informers.Clientset
	snapshots snapshotclient.SnapshotV1Interface
}

// NewClients creates the clients without a request. An error states which client is invalid.
func NewClients(cluster *rest.Config) (*Clients, error) {
	kube, err := kubernetes.NewForConfig(cluster)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	velero, err := informers.NewClientset(cluster)
	if err != nil {
		return nil, err
	}
	snapshots, err := snapshotclient.NewForConfig(cluster)
	if err != nil {
		return nil, fmt.Errorf("create client for snapshots: %w", err)
	}
	return &Clients{kube: kube, velero: velero, snapshots: snapshots}, nil
}

// source is one resource in one namespace, or in the whole cluster.
type source struct {
	resource  string
	namespace string
	example   runtime.Object
	lists     *cache.ListWatch
}

func from[L runtime.Object](resource, namespace string, example runtime.Object, client informers.Source[L], only metav1.ListOptions) source {
	narrowed := func(opts metav1.ListOptions) metav1.ListOptions {
		opts.LabelSelector, opts.FieldSelector = only.LabelSelector, only.FieldSelector
		return opts
	}
	return source{resource, namespace, example, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, narrowed(opts))
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, narrowed(opts))
		},
	}}
}

func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: metav1.ObjectNameField + "=" + name}
}

// sources returns the resources of a status without dependencies. Of Events, it reads only Warnings: movers report
// their progress in Normal Events.
func (c *Clients) sources(namespace string) []source {
	all, core := metav1.ListOptions{}, c.kube.CoreV1()
	return append(c.transfers(namespace),
		from(repositoriesName, namespace, &velerov1.BackupRepository{}, c.velero.BackupRepositories(namespace), all),
		from(podsName, namespace, &corev1.Pod{}, core.Pods(namespace), all),
		from(claimsName, namespace, &corev1.PersistentVolumeClaim{}, core.PersistentVolumeClaims(namespace), metav1.ListOptions{LabelSelector: api.LabelMover + "=true"}),
		from(configsName, namespace, &corev1.ConfigMap{}, core.ConfigMaps(namespace), all),
		from(eventsName, namespace, &corev1.Event{}, core.Events(namespace), metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning}),
		from("jobs.batch", namespace, &batchv1.Job{}, c.kube.BatchV1().Jobs(namespace), metav1.ListOptions{LabelSelector: api.LabelRepository}),
		from(leasesName, namespace, &coordinationv1.Lease{}, c.kube.CoordinationV1().Leases(namespace), named(deploy.CoordinatorLease)),
		from(agentsName, namespace, &appsv1.DaemonSet{}, c.kube.AppsV1().DaemonSets(namespace), named(config.DaemonSetName)),
		from("deployments.apps", namespace, &appsv1.Deployment{}, c.kube.AppsV1().Deployments(namespace), named(config.VeleroDeployment)),
		from(nodesName, "", &corev1.Node{}, core.Nodes(), all),
		from(priorityName, "", &schedulingv1.PriorityClass{}, c.kube.SchedulingV1().PriorityClasses(), all),
	)
}

// dependency is a resource in a namespace that is read only because a transfer may wait for it.
type dependency struct{ resource, namespace string }

// dependencies returns the dependencies of all transfers in a fixed order.
func (s *Snapshot) dependencies() []dependency {
	all := map[dependency]bool{}
	for _, one := range s.transfers {
		for _, w := range one.dependencies() {
			// all pods of Velero's namespace are read anyway
			all[w] = w.namespace != s.namespace || w.resource != podsName
		}
	}
	var wanted []dependency
	for w, more := range all {
		if more {
			wanted = append(wanted, w)
		}
	}
	slices.SortFunc(wanted, func(a, b dependency) int {
		return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(a.namespace, b.namespace))
	})
	return wanted
}

// dependencies returns what this transfer may wait for outside of the regular sources.
func (s *subject) dependencies() []dependency {
	source := s.move.Source
	switch {
	case s.phase() == transfer.New && source.PodVolume != nil && s.move.Restores:
		return []dependency{{podsName, source.PodVolume.Pod.Namespace}}
	case s.phase() == transfer.New && source.Target != nil:
		return []dependency{{claimsName, source.Target.Namespace}, {classesName, ""}}
	case source.Snapshot != nil && (s.phase() == transfer.Accepted || s.phase().Terminal() && s.state.Finalizer):
		return []dependency{{snapshotsName, source.Snapshot.Namespace}, {snapshotsName, s.meta.GetNamespace()}, {contentsName, ""}}
	}
	return nil
}

// dependencies returns the source of a dependency.
func (c *Clients) dependencies(w dependency) source {
	all, core := metav1.ListOptions{}, c.kube.CoreV1()
	switch w.resource {
	case podsName:
		return from(w.resource, w.namespace, &corev1.Pod{}, core.Pods(w.namespace), all)
	case claimsName:
		return from(w.resource, w.namespace, &corev1.PersistentVolumeClaim{}, core.PersistentVolumeClaims(w.namespace), all)
	case snapshotsName:
		return from(w.resource, w.namespace, &snapshotv1.VolumeSnapshot{}, c.snapshots.VolumeSnapshots(w.namespace), all)
	case contentsName:
		return from(w.resource, "", &snapshotv1.VolumeSnapshotContent{}, c.snapshots.VolumeSnapshotContents(), all)
	default:
		return from(w.resource, "", &storagev1.StorageClass{}, c.kube.StorageV1().StorageClasses(), all)
	}
}
