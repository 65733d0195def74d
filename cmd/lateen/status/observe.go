// Package status reads a cluster for `lateen status` and `lateen explain`, once or with watches. It never changes an
// object and sends no request to an agent.
package status

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/informers"
)

// clients read the objects of a Snapshot.
type clients struct {
	kube      kubernetes.Interface
	velero    *informers.Clientset
	snapshots snapshotclient.SnapshotV1Interface
}

// newClients creates the clients without a request. An error states which client is invalid.
func newClients(cluster *rest.Config) (*clients, error) {
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
	return &clients{kube: kube, velero: velero, snapshots: snapshots}, nil
}

// source is one resource in one namespace, or in the whole cluster.
type source struct {
	resource  string
	namespace string
	example   runtime.Object
	lists     *cache.ListWatch
}

func from[L runtime.Object](resource, namespace string, example runtime.Object, client informers.Source[L], only metav1.ListOptions) source {
	return source{resource, namespace, example, informers.ListWatch(client, informers.Scope{Labels: only.LabelSelector, Fields: only.FieldSelector})}
}

// unreadable returns why a source could not be read, and the fix.
func (s source) unreadable(err error) view.Unreadable {
	u := view.Unreadable{Resource: s.resource, Namespace: s.namespace, Message: view.OneLine(err.Error())}
	switch {
	case apierrors.IsForbidden(err):
		u.Message = "not allowed to list or watch them; docs/command-line.md lists the required RBAC rules"
	case apierrors.IsNotFound(err):
		u.Message = "the API server does not serve them"
	case errors.Is(err, context.DeadlineExceeded):
		u.Message = "no response from the API server in time"
	}
	return u
}

// sources returns the resources of a status without dependencies. Of Events, it reads only Warnings: movers report
// their progress in Normal Events.
func (c *clients) sources(namespace string) []source {
	all, core := metav1.ListOptions{}, c.kube.CoreV1()
	return []source{
		from(api.PodVolumeBackup().CRD(), namespace, &velerov1.PodVolumeBackup{}, c.velero.PodVolumeBackups(namespace), all),
		from(api.PodVolumeRestore().CRD(), namespace, &velerov1.PodVolumeRestore{}, c.velero.PodVolumeRestores(namespace), all),
		from(api.DataUpload().CRD(), namespace, &velerov2alpha1.DataUpload{}, c.velero.DataUploads(namespace), all),
		from(api.DataDownload().CRD(), namespace, &velerov2alpha1.DataDownload{}, c.velero.DataDownloads(namespace), all),
		from(view.ResourceRepositories, namespace, &velerov1.BackupRepository{}, c.velero.BackupRepositories(namespace), all),
		from(view.ResourcePods, namespace, &corev1.Pod{}, core.Pods(namespace), all),
		from(view.ResourceClaims, namespace, &corev1.PersistentVolumeClaim{}, core.PersistentVolumeClaims(namespace), metav1.ListOptions{LabelSelector: api.LabelMover + "=true"}),
		from(view.ResourceConfigMaps, namespace, &corev1.ConfigMap{}, core.ConfigMaps(namespace), all),
		from(view.ResourceEvents, namespace, &corev1.Event{}, core.Events(namespace), metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning}),
		from("jobs.batch", namespace, &batchv1.Job{}, c.kube.BatchV1().Jobs(namespace), metav1.ListOptions{LabelSelector: api.LabelRepository}),
		from(view.ResourceLeases, namespace, &coordinationv1.Lease{}, c.kube.CoordinationV1().Leases(namespace), metav1.SingleObject(metav1.ObjectMeta{Name: deploy.CoordinatorLease})),
		from(view.ResourceDaemonSets, namespace, &appsv1.DaemonSet{}, c.kube.AppsV1().DaemonSets(namespace), metav1.SingleObject(metav1.ObjectMeta{Name: api.DaemonSetName})),
		from("deployments.apps", namespace, &appsv1.Deployment{}, c.kube.AppsV1().Deployments(namespace), all),
		from(view.ResourceNodes, "", &corev1.Node{}, core.Nodes(), all),
		from(view.ResourcePriorityClasses, "", &schedulingv1.PriorityClass{}, c.kube.SchedulingV1().PriorityClasses(), all),
	}
}

// dependency returns the source of a dependency.
func (c *clients) dependency(w diagnose.Dependency) source {
	all, core := metav1.ListOptions{}, c.kube.CoreV1()
	switch w.Resource {
	case view.ResourceEvents:
		return from(w.Resource, w.Namespace, &corev1.Event{}, core.Events(w.Namespace), metav1.ListOptions{FieldSelector: "involvedObject.name=" + w.Name})
	case view.ResourceLocations:
		return from(w.Resource, w.Namespace, &velerov1.BackupStorageLocation{}, c.velero.BackupStorageLocations(w.Namespace), all)
	case view.ResourcePods:
		return from(w.Resource, w.Namespace, &corev1.Pod{}, core.Pods(w.Namespace), all)
	case view.ResourceClaims:
		return from(w.Resource, w.Namespace, &corev1.PersistentVolumeClaim{}, core.PersistentVolumeClaims(w.Namespace), all)
	case view.ResourceSnapshots:
		return from(w.Resource, w.Namespace, &snapshotv1.VolumeSnapshot{}, c.snapshots.VolumeSnapshots(w.Namespace), all)
	case view.ResourceContents:
		return from(w.Resource, "", &snapshotv1.VolumeSnapshotContent{}, c.snapshots.VolumeSnapshotContents(), all)
	default:
		return from(w.Resource, "", &storagev1.StorageClass{}, c.kube.StorageV1().StorageClasses(), all)
	}
}
