package informers

import (
	"context"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
)

// Transfers holds the caches of all kinds of transfers.
type Transfers struct {
	PodVolumeBackups  *Resources[*velerov1.PodVolumeBackup]
	PodVolumeRestores *Resources[*velerov1.PodVolumeRestore]
	DataUploads       *Resources[*velerov2alpha1.DataUpload]
	DataDownloads     *Resources[*velerov2alpha1.DataDownload]
}

func newTransfers(b *group, velero *Clientset, namespace string, mine labels.Set) Transfers {
	return Transfers{
		PodVolumeBackups: newResources(b, mine, func(g *group, labels string) *Informer[*velerov1.PodVolumeBackup] {
			return add(g, api.PodVolumeBackup().Resource, velero.PodVolumeBackups(namespace), &velerov1.PodVolumeBackup{}, undone(labels), trimBackup)
		}),
		PodVolumeRestores: newResources(b, mine, func(g *group, labels string) *Informer[*velerov1.PodVolumeRestore] {
			return add(g, api.PodVolumeRestore().Resource, velero.PodVolumeRestores(namespace), &velerov1.PodVolumeRestore{}, undone(labels), trimRestore)
		}),
		DataUploads: newResources(b, mine, func(g *group, labels string) *Informer[*velerov2alpha1.DataUpload] {
			return add(g, api.DataUpload().Resource, velero.DataUploads(namespace), &velerov2alpha1.DataUpload{}, undone(labels), trimUpload)
		}),
		DataDownloads: newResources(b, mine, func(g *group, labels string) *Informer[*velerov2alpha1.DataDownload] {
			return add(g, api.DataDownload().Resource, velero.DataDownloads(namespace), &velerov2alpha1.DataDownload{}, undone(labels), trimDownload)
		}),
	}
}

// undone selects transfers that are not labelled as done, and have these labels too. An agent that does not know what its
// predecessor started would exceed the slots of its node.
func undone(labels string) Scope {
	return Scope{Labels: strings.TrimSuffix(api.SelectUndone+","+labels, ","), Consistent: true, UnknownFields: true}
}

// widening is a Resources of any kind.
type widening interface {
	widen(g *group) []cache.DoneChecker
	use(all bool)
	stale() bool
}

func (t *Transfers) kinds() []widening {
	return []widening{t.PodVolumeBackups, t.PodVolumeRestores, t.DataUploads, t.DataDownloads}
}

// Stale reports whether a cache may lack what other agents wrote, because its last request failed.
func (t *Transfers) Stale() bool { return slices.ContainsFunc(t.kinds(), widening.stale) }

func (t *Transfers) index() error {
	return t.DataUploads.Index(BySnapshot, func(upload *velerov2alpha1.DataUpload) []string {
		if upload.Spec.CSISnapshot == nil {
			return nil
		}
		return []string{upload.Spec.SourceNamespace + "/" + upload.Spec.CSISnapshot.VolumeSnapshot}
	})
}

// Client is a typed client for the resources of one kind in one namespace.
type Client[T Object, L runtime.Object] = gentype.ClientWithList[T, L]

// clientOf returns a client for the resources of one kind in one namespace.
func clientOf[S, L any, T interface {
	*S
	Object
}, LT interface {
	*L
	runtime.Object
}](c *Clientset, client rest.Interface, resource, namespace string) *gentype.ClientWithList[T, LT] {
	return gentype.NewClientWithList(resource, client, c.codecs, namespace, func() T { return new(S) }, func() LT { return new(L) })
}

// PodVolumeBackups returns the client for one namespace.
func (c *Clientset) PodVolumeBackups(namespace string) *Client[*velerov1.PodVolumeBackup, *velerov1.PodVolumeBackupList] {
	return clientOf[velerov1.PodVolumeBackup, velerov1.PodVolumeBackupList](c, c.v1, api.PodVolumeBackup().Resource, namespace)
}

// PodVolumeRestores returns the client for one namespace.
func (c *Clientset) PodVolumeRestores(namespace string) *Client[*velerov1.PodVolumeRestore, *velerov1.PodVolumeRestoreList] {
	return clientOf[velerov1.PodVolumeRestore, velerov1.PodVolumeRestoreList](c, c.v1, api.PodVolumeRestore().Resource, namespace)
}

// DataUploads returns the client for one namespace.
func (c *Clientset) DataUploads(namespace string) *Client[*velerov2alpha1.DataUpload, *velerov2alpha1.DataUploadList] {
	return clientOf[velerov2alpha1.DataUpload, velerov2alpha1.DataUploadList](c, c.v2, api.DataUpload().Resource, namespace)
}

// DataDownloads returns the client for one namespace.
func (c *Clientset) DataDownloads(namespace string) *Client[*velerov2alpha1.DataDownload, *velerov2alpha1.DataDownloadList] {
	return clientOf[velerov2alpha1.DataDownload, velerov2alpha1.DataDownloadList](c, c.v2, api.DataDownload().Resource, namespace)
}

// Backup returns a Backup. No cache holds any: Velero's server acts on them.
func (c *Clientset) Backup(ctx context.Context, namespace, name string) (*velerov1.Backup, error) {
	backup := &velerov1.Backup{}
	err := c.v1.Get().Namespace(namespace).Resource("backups").Name(name).Do(ctx).Into(backup)
	return backup, err
}

// Restore returns a Restore.
func (c *Clientset) Restore(ctx context.Context, namespace, name string) (*velerov1.Restore, error) {
	restore := &velerov1.Restore{}
	err := c.v1.Get().Namespace(namespace).Resource("restores").Name(name).Do(ctx).Into(restore)
	return restore, err
}

// The trims reduce a terminal resource that needs no clean-up to the fields for counting. Such a resource is cached only
// while it has no api.LabelDone: Velero's agents do not set it. Then thousands may stay until the coordinator has set it.

func trimBackup(backup *velerov1.PodVolumeBackup) {
	if cleanedUp(backup, backup.Status.Phase, api.PodVolumeBackup()) {
		*backup = velerov1.PodVolumeBackup{
			ObjectMeta: minimalMeta(backup.ObjectMeta),
			Spec:       velerov1.PodVolumeBackupSpec{Node: backup.Spec.Node},
			Status:     velerov1.PodVolumeBackupStatus{Phase: backup.Status.Phase},
		}
	}
}

func trimRestore(restore *velerov1.PodVolumeRestore) {
	if cleanedUp(restore, restore.Status.Phase, api.PodVolumeRestore()) {
		*restore = velerov1.PodVolumeRestore{
			ObjectMeta: minimalMeta(restore.ObjectMeta),
			Status:     velerov1.PodVolumeRestoreStatus{Phase: restore.Status.Phase, Node: restore.Status.Node},
		}
	}
}

func trimUpload(upload *velerov2alpha1.DataUpload) {
	if cleanedUp(upload, upload.Status.Phase, api.DataUpload()) {
		*upload = velerov2alpha1.DataUpload{
			ObjectMeta: minimalMeta(upload.ObjectMeta),
			Spec:       velerov2alpha1.DataUploadSpec{DataMover: upload.Spec.DataMover},
			Status:     velerov2alpha1.DataUploadStatus{Phase: upload.Status.Phase, Node: upload.Status.Node},
		}
	}
}

func trimDownload(download *velerov2alpha1.DataDownload) {
	if cleanedUp(download, download.Status.Phase, api.DataDownload()) {
		*download = velerov2alpha1.DataDownload{
			ObjectMeta: minimalMeta(download.ObjectMeta),
			Spec:       velerov2alpha1.DataDownloadSpec{DataMover: download.Spec.DataMover},
			Status:     velerov2alpha1.DataDownloadStatus{Phase: download.Status.Phase, Node: download.Status.Node},
		}
	}
}

// cleanedUp reports whether a transfer is terminal and needs no clean-up. Without the finalizer, it may still need one
// by Lateen: an agent of Velero may have removed it. Each kind has the same phases with a type of its own.
func cleanedUp[P ~string](object metav1.Object, phase P, kind api.Kind) bool {
	return slices.Contains([]P{"Completed", "Failed", "Canceled"}, phase) &&
		!slices.Contains(object.GetFinalizers(), kind.Finalizer) && object.GetAnnotations()[api.AnnotationExposer] == ""
}

// Targets watches the target claims of restores: one watch on one claim for each restore that waits for it. An agent
// does not cache all claims of a cluster.
type Targets struct {
	*singles[types.UID, *corev1.PersistentVolumeClaim]
}

// NewTargets watches claims until the context ends.
func NewTargets(ctx context.Context, client kubernetes.Interface) *Targets {
	return &Targets{newSingles[types.UID](ctx, func(namespace string, one Scope) (*Informer[*corev1.PersistentVolumeClaim], error) {
		return New("target claim", client.CoreV1().PersistentVolumeClaims(namespace), &corev1.PersistentVolumeClaim{}, one, noTrim[*corev1.PersistentVolumeClaim])
	})}
}

// Claim returns the target claim of a resource, or nil if it does not exist; known is false until the watch has
// synced.
func (t *Targets) Claim(uid types.UID) (claim *corev1.PersistentVolumeClaim, known bool) {
	return t.get(uid)
}

// Attachments watches VolumeAttachments by name, each for the restore that waits until its volume is detached.
type Attachments struct {
	*singles[types.UID, *storagev1.VolumeAttachment]
}

// NewAttachments watches VolumeAttachments until the context ends.
func NewAttachments(ctx context.Context, client kubernetes.Interface) *Attachments {
	return &Attachments{newSingles[types.UID](ctx, func(_ string, one Scope) (*Informer[*storagev1.VolumeAttachment], error) {
		return New("volume attachment", client.StorageV1().VolumeAttachments(), &storagev1.VolumeAttachment{}, one, noTrim[*storagev1.VolumeAttachment])
	})}
}

// Detached reports whether the VolumeAttachment that is watched for a resource does not exist any more; watched is false if none is.
func (a *Attachments) Detached(uid types.UID) (detached, watched bool) {
	a.lock.Lock()
	watched = a.followed[uid] != nil
	a.lock.Unlock()
	attachment, known := a.get(uid)
	return known && attachment == nil, watched
}

// ClassChanged enqueues the resources whose target claim has that storage class.
func (t *Targets) ClassChanged(name string) {
	t.lock.Lock()
	defer t.lock.Unlock()
	for _, followed := range t.followed {
		if claim, ok := followed.objects.Get(followed.key); ok && ptr.Deref(claim.Spec.StorageClassName, "") == name {
			followed.enqueue()
		}
	}
}

func minimalMeta(meta metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: meta.Name, Namespace: meta.Namespace, UID: meta.UID, ResourceVersion: meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp, DeletionTimestamp: meta.DeletionTimestamp,
	}
}

// trimPod keeps what the scheduling of a mover and the reading of its state need. Patches of pods are never computed
// from the cache.
func trimPod(pod *corev1.Pod) {
	spec := pod.Spec
	pod.Spec = corev1.PodSpec{
		NodeName:          spec.NodeName,
		Containers:        memoryLimits(pod),
		Volumes:           spec.Volumes,
		Tolerations:       spec.Tolerations,
		PriorityClassName: spec.PriorityClassName,
		Priority:          spec.Priority,
		OS:                spec.OS,
	}
	status := pod.Status
	pod.Status = corev1.PodStatus{
		Phase: status.Phase, Reason: status.Reason, Message: status.Message,
		Conditions: status.Conditions, ContainerStatuses: status.ContainerStatuses,
		InitContainerStatuses: status.InitContainerStatuses,
	}
}

// trimAgent also keeps the commands of an agent's containers, which show whether it is Velero's.
func trimAgent(pod *corev1.Pod) {
	var containers []corev1.Container
	for _, container := range pod.Spec.Containers {
		containers = append(containers, corev1.Container{Name: container.Name, Command: container.Command, Args: container.Args})
	}
	trimPod(pod)
	pod.Spec.Containers = containers
}

// trimToOwner keeps the metadata of a pod, with its labels and owners.
func trimToOwner(pod *corev1.Pod) {
	meta := minimalMeta(pod.ObjectMeta)
	meta.Labels, meta.OwnerReferences = pod.Labels, pod.OwnerReferences
	*pod = corev1.Pod{ObjectMeta: meta}
}

// trimNode keeps the Ready condition of a Node.
func trimNode(node *corev1.Node) {
	conditions := slices.DeleteFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool { return condition.Type != corev1.NodeReady })
	*node = corev1.Node{ObjectMeta: minimalMeta(node.ObjectMeta), Status: corev1.NodeStatus{Conditions: conditions}}
}

// memoryLimits returns the containers of a mover that have a memory limit, with nothing else. The message of an
// OOM-killed mover names the limit.
func memoryLimits(pod *corev1.Pod) []corev1.Container {
	if !metav1.HasLabel(pod.ObjectMeta, api.LabelMover) {
		return nil
	}
	var limited []corev1.Container
	for _, container := range pod.Spec.Containers {
		if limit, ok := container.Resources.Limits[corev1.ResourceMemory]; ok {
			limited = append(limited, corev1.Container{Name: container.Name, Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{corev1.ResourceMemory: limit},
			}})
		}
	}
	return limited
}
