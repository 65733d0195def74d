package testenv

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
	"k8s.io/client-go/dynamic"
)

// Kind is one of the four kinds of resources by which Velero's server requests a data transfer.
type Kind string

// The kinds, by their names in the API.
const (
	PodVolumeBackup  Kind = "PodVolumeBackup"
	PodVolumeRestore Kind = "PodVolumeRestore"
	DataUpload       Kind = "DataUpload"
	DataDownload     Kind = "DataDownload"
)

// Kinds returns all four kinds.
func Kinds() []Kind { return []Kind{PodVolumeBackup, PodVolumeRestore, DataUpload, DataDownload} }

// Resource returns the API resource of the kind.
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

// Label returns the label of the kind's mover pods. Its value is the name of the resource.
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

// Phase is the phase of a transfer. Velero uses the same phases for every kind, and an empty one for new resources.
type Phase string

// The phases. The last three are terminal.
const (
	Accepted   Phase = "Accepted"
	Prepared   Phase = "Prepared"
	InProgress Phase = "InProgress"
	Completed  Phase = "Completed"
	Failed     Phase = "Failed"
	Canceled   Phase = "Canceled"
)

// Transfer has the common fields of the four kinds, and some fields of single kinds.
type Transfer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   TransferSpec   `json:"spec"`
	Status TransferStatus `json:"status"`
}

// TransferSpec is the request of Velero's server.
type TransferSpec struct {
	Cancel     bool                   `json:"cancel"`
	Node       string                 `json:"node"`       // of a PodVolumeBackup
	Pod        corev1.ObjectReference `json:"pod"`        // of a PodVolumeBackup or PodVolumeRestore
	Volume     string                 `json:"volume"`     // of that pod
	SnapshotID string                 `json:"snapshotID"` // of a restore
	// TargetVolume is the target of a DataDownload.
	TargetVolume velerov2alpha1.TargetVolumeSpec `json:"targetVolume"`
}

// TransferStatus is the state that the agent reports.
type TransferStatus struct {
	Phase               Phase                            `json:"phase"`
	Message             string                           `json:"message"`
	Node                string                           `json:"node"` // not of a PodVolumeBackup
	NodeOS              string                           `json:"nodeOS"`
	Path                string                           `json:"path"`
	SnapshotID          string                           `json:"snapshotID"` // of a backup
	AcceptedByNode      string                           `json:"acceptedByNode"`
	CompletionTimestamp *metav1.Time                     `json:"completionTimestamp"`
	Progress            shared.DataMoveOperationProgress `json:"progress"`
	IncrementalBytes    int64                            `json:"incrementalBytes"`
}

// Node returns the node of the transfer; "" if it has none yet.
func (t *Transfer) Node() string { return cmp.Or(t.Status.Node, t.Spec.Node) }

// Ended reports whether the phase is terminal.
func (p Phase) Ended() bool { return p == Completed || p == Failed || p == Canceled }

// Ended reports whether the transfer is in a terminal phase.
func Ended(transfer *Transfer) bool { return transfer.Status.Phase.Ended() }

// Settled reports whether the transfer is terminal and has no finalizer, so that it needs no further action.
func Settled(transfer *Transfer) bool { return Ended(transfer) && len(transfer.Finalizers) == 0 }

// In returns a condition: the transfer is in phase.
func In(phase Phase) func(*Transfer) bool {
	return func(transfer *Transfer) bool { return transfer.Status.Phase == phase }
}

// View reads a Transfer from a resource of any of the kinds. The error names a resource with an invalid field.
func View(resource *unstructured.Unstructured) (*Transfer, error) {
	transfer := &Transfer{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(resource.Object, transfer); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", resource.GetKind(), resource.GetName(), err)
	}
	return transfer, nil
}

// Transfers is the client of one kind of Velero's resources.
type Transfers struct {
	kind   Kind
	client dynamic.ResourceInterface
}

// Transfers returns the client of a kind in Velero's namespace.
func (e *Env) Transfers(kind Kind) Transfers {
	return Transfers{kind: kind, client: e.dynamic.Resource(kind.Resource()).Namespace(e.Namespace)}
}

// Get reads one transfer. It returns the error of the API server unwrapped.
func (t Transfers) Get(ctx context.Context, name string) (*Transfer, error) {
	found, err := t.client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return View(found)
}

// List reads all transfers of the kind.
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

// Patch applies a JSON merge patch, including the status, because these resources have no status subresource. It
// returns the error of the API server unwrapped.
func (t Transfers) Patch(ctx context.Context, name, patch string) error {
	_, err := t.client.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// Cancel requests a cancel as Velero's server does.
func (t Transfers) Cancel(ctx context.Context, name string) error {
	return t.Patch(ctx, name, `{"spec":{"cancel":true}}`)
}

// Delete requests a deletion, which finalizers may delay.
func (t Transfers) Delete(ctx context.Context, name string) error {
	return t.client.Delete(ctx, name, metav1.DeleteOptions{})
}

// Wait returns the transfer with that name after done accepts it. The error contains the last observed state. A
// settled transfer that done rejects is an error at once.
func (t Transfers) Wait(ctx context.Context, name string, done func(*Transfer) bool) (*Transfer, error) {
	return t.wait(ctx, Named(name), done)
}

// WaitAny returns the first transfer that done accepts.
func (t Transfers) WaitAny(ctx context.Context, done func(*Transfer) bool) (*Transfer, error) {
	return t.wait(ctx, metav1.ListOptions{}, done)
}

func (t Transfers) wait(ctx context.Context, options metav1.ListOptions, done func(*Transfer) bool) (*Transfer, error) {
	found := &Transfer{}
	var unread error
	_, err := Wait(ctx, t.client, options, func(resource *unstructured.Unstructured) bool {
		found, unread = View(resource)
		return unread != nil || done(found)
	}, func(*unstructured.Unstructured) error {
		if Settled(found) {
			return fmt.Errorf("it has ended as %s", found.Status.Phase)
		}
		return nil
	})
	if err := cmp.Or(err, unread); err != nil {
		return nil, fmt.Errorf("wait for a %s: %w", t.kind, err)
	}
	return found, nil
}

// WaitGone waits until no transfer has that name.
func (t Transfers) WaitGone(ctx context.Context, name string) error {
	return WaitGone(ctx, t.client, Named(name))
}

// WaitNone waits until the label selector selects no transfer of now.
func (t Transfers) WaitNone(ctx context.Context, selector string) error {
	return WaitGone(ctx, t.client, metav1.ListOptions{LabelSelector: selector})
}
