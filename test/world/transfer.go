package world

import (
	"cmp"
	"context"
	"fmt"

	"github.com/vmware-tanzu/velero/pkg/apis/velero/shared"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// Kind is one of the four kinds of resources by which Velero's server asks for data to be moved.
type Kind string

// The kinds, by their names in the API.
const (
	PodVolumeBackup  Kind = "PodVolumeBackup"
	PodVolumeRestore Kind = "PodVolumeRestore"
	DataUpload       Kind = "DataUpload"
	DataDownload     Kind = "DataDownload"
)

// Kinds are all four of them.
func Kinds() []Kind { return []Kind{PodVolumeBackup, PodVolumeRestore, DataUpload, DataDownload} }

// Resource is what the API server calls the kind's resources.
func (k Kind) Resource() schema.GroupVersionResource {
	switch k {
	case PodVolumeBackup:
		return velerov1.SchemeGroupVersion.WithResource(podVolumeBackups)
	case PodVolumeRestore:
		return velerov1.SchemeGroupVersion.WithResource(podVolumeRestores)
	case DataUpload:
		return velerov2alpha1.SchemeGroupVersion.WithResource(dataUploads)
	default:
		return velerov2alpha1.SchemeGroupVersion.WithResource(dataDownloads)
	}
}

// Label marks the kind's mover pods; its value is the name of the resource.
func (k Kind) Label() string {
	switch k {
	case PodVolumeBackup:
		return velerov1.PVBLabel
	case PodVolumeRestore:
		return velerov1.PVRLabel
	case DataUpload:
		return velerov1.DataUploadLabel
	default:
		return velerov1.DataDownloadLabel
	}
}

// Phase is how far a transfer is; Velero has the same ones for every kind, and none at first.
type Phase string

// The phases, of which the last three are final.
const (
	Accepted   Phase = "Accepted"
	Prepared   Phase = "Prepared"
	InProgress Phase = "InProgress"
	Canceling  Phase = "Canceling"
	Completed  Phase = "Completed"
	Failed     Phase = "Failed"
	Canceled   Phase = "Canceled"
)

// Transfer is what the four kinds have in common, and some of what one of them has.
type Transfer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   TransferSpec   `json:"spec"`
	Status TransferStatus `json:"status"`
}

// TransferSpec is what Velero's server asks for.
type TransferSpec struct {
	Cancel     bool                   `json:"cancel"`
	Node       string                 `json:"node"`       // of a PodVolumeBackup
	Pod        corev1.ObjectReference `json:"pod"`        // of a PodVolumeBackup or PodVolumeRestore
	Volume     string                 `json:"volume"`     // of that pod
	SnapshotID string                 `json:"snapshotID"` // of a restore
	// TargetVolume is what a DataDownload is for.
	TargetVolume velerov2alpha1.TargetVolumeSpec `json:"targetVolume"`
}

// TransferStatus is what the agent says of it.
type TransferStatus struct {
	Phase               Phase                            `json:"phase"`
	Message             string                           `json:"message"`
	Node                string                           `json:"node"` // not of a PodVolumeBackup
	NodeOS              string                           `json:"nodeOS"`
	Path                string                           `json:"path"`
	SnapshotID          string                           `json:"snapshotID"` // of a backup
	AcceptedByNode      string                           `json:"acceptedByNode"`
	AcceptedTimestamp   *metav1.Time                     `json:"acceptedTimestamp"`
	StartTimestamp      *metav1.Time                     `json:"startTimestamp"`
	CompletionTimestamp *metav1.Time                     `json:"completionTimestamp"`
	Progress            shared.DataMoveOperationProgress `json:"progress"`
	IncrementalBytes    int64                            `json:"incrementalBytes"`
	DataMoverResult     map[string]string                `json:"dataMoverResult"`
}

// Node is where the transfer is done; "" if that is not settled yet.
func (t *Transfer) Node() string { return cmp.Or(t.Status.Node, t.Spec.Node) }

// Ended says that the phase is one that never changes again.
func (p Phase) Ended() bool { return p == Completed || p == Failed || p == Canceled }

// Ended says that the transfer's phase is one that never changes again.
func Ended(transfer *Transfer) bool { return transfer.Status.Phase.Ended() }

// Settled says that the transfer has ended and that nobody has anything left to do about it.
func Settled(transfer *Transfer) bool { return Ended(transfer) && len(transfer.Finalizers) == 0 }

// In returns the question whether a transfer is in phase.
func In(phase Phase) func(*Transfer) bool {
	return func(transfer *Transfer) bool { return transfer.Status.Phase == phase }
}

// View reads a Transfer from a resource of any of the kinds.
func View(resource *unstructured.Unstructured) (*Transfer, error) {
	transfer := &Transfer{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(resource.Object, transfer); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", resource.GetKind(), resource.GetName(), err)
	}
	return transfer, nil
}

// Transfers are Velero's resources of one kind.
type Transfers struct {
	kind   Kind
	client dynamic.ResourceInterface
}

// Transfers are those of a kind in Velero's namespace.
func (w *World) Transfers(kind Kind) Transfers {
	return Transfers{kind: kind, client: w.dynamic.Resource(kind.Resource()).Namespace(w.Namespace)}
}

// Get reads one from the API server, whose error it returns as it is.
func (t Transfers) Get(ctx context.Context, name string) (*Transfer, error) {
	found, err := t.client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return View(found)
}

// List reads all of them.
func (t Transfers) List(ctx context.Context) ([]*Transfer, error) {
	list, err := t.client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list %ss: %w", t.kind, err)
	}
	found := make([]*Transfer, len(list.Items))
	for i := range list.Items {
		if found[i], err = View(&list.Items[i]); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Watch tells of every change from now on; View reads what it carries.
func (t Transfers) Watch(ctx context.Context) (watch.Interface, error) {
	watcher, err := t.client.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("watch %ss: %w", t.kind, err)
	}
	return watcher, nil
}

// Patch applies a JSON merge patch, status and all: these resources have no subresource. It returns the error of
// the API server as it is.
func (t Transfers) Patch(ctx context.Context, name, patch string) error {
	_, err := t.client.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// Cancel asks for the end of one as Velero's server does.
func (t Transfers) Cancel(ctx context.Context, name string) error {
	return t.Patch(ctx, name, `{"spec":{"cancel":true}}`)
}

// Delete asks for the deletion of one, which finalizers may delay.
func (t Transfers) Delete(ctx context.Context, name string) error {
	return t.client.Delete(ctx, name, metav1.DeleteOptions{})
}

// Wait returns the one of that name once done says so of it. The error has what was seen last; a transfer that is settled
// otherwise is one at once.
func (t Transfers) Wait(ctx context.Context, name string, done func(*Transfer) bool) (*Transfer, error) {
	watcher, err := t.client.Watch(ctx, named(name))
	if err != nil {
		return nil, fmt.Errorf("watch %ss: %w", t.kind, err)
	}
	return t.await(ctx, watcher, name, done)
}

func (t Transfers) await(ctx context.Context, watcher watch.Interface, name string, done func(*Transfer) bool) (*Transfer, error) {
	found := &Transfer{}
	var unread error
	_, err := await(ctx, watcher, func(resource *unstructured.Unstructured) bool {
		found, unread = View(resource)
		return unread != nil || done(found)
	}, func(*unstructured.Unstructured) error {
		if Settled(found) {
			return fmt.Errorf("it has ended as %s", found.Status.Phase)
		}
		return nil
	})
	if err == nil {
		err = unread
	}
	if err != nil {
		return nil, fmt.Errorf("wait for %s %s: %w", t.kind, name, err)
	}
	return found, nil
}

// WaitAny returns the first one of which done says so.
func (t Transfers) WaitAny(ctx context.Context, done func(*Transfer) bool) (*Transfer, error) {
	watcher, err := t.Watch(ctx)
	if err != nil {
		return nil, err
	}
	return t.await(ctx, watcher, "any", done)
}

// WaitGone returns once there is none of that name.
func (t Transfers) WaitGone(ctx context.Context, name string) error {
	options := named(name)
	list, err := t.client.List(ctx, options)
	if err != nil {
		return fmt.Errorf("list %s %s: %w", t.kind, name, err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	options.ResourceVersion = list.GetResourceVersion()
	watcher, err := t.client.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watch %ss: %w", t.kind, err)
	}
	return awaitDeletion(ctx, watcher, fmt.Sprintf("%s %s", t.kind, name))
}
