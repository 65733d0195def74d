// Package exposer acts on the objects of an exposure: it creates missing objects and deletes Lateen's own. It keeps
// no state, reads no ConfigMap and decides nothing about the transfer.
package exposer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Exposer creates and deletes movers and the volumes that they read or write.
type Exposer struct {
	Client    kubernetes.Interface
	Snapshots Snapshots
	Templates map[corev1.OSName]objects.Template // always contains linux
	Paths     HostPaths
	// Source returns the cached pod with that key if it runs on this node; nil falls back to a GET.
	Source func(key string) *corev1.Pod
	// StorageClass returns the cached class of that name; nil falls back to a GET. The function itself may be nil.
	StorageClass func(name string) *storagev1.StorageClass
	// Refresh is called before a mover is planned; it may set the settings. It may be nil.
	Refresh func(ctx context.Context)
	// Rejected is called for each mover created without the class in force, with the reason.
	Rejected func(ctx context.Context, mover *corev1.Pod, class string, reason priority.Reason)
	// Created is called for each created mover; it may be nil.
	Created func(mover *corev1.Pod)

	settings atomic.Pointer[objects.Settings]
}

// SetSettings sets the settings of the movers and volumes that are created from now on.
func (e *Exposer) SetSettings(settings objects.Settings) { e.settings.Store(&settings) }

// SetPriorityClass sets the priority class of the movers that are created from now on; empty for none.
func (e *Exposer) SetPriorityClass(name string) {
	for {
		before, after := e.settings.Load(), e.current()
		after.PriorityClass = name
		if e.settings.CompareAndSwap(before, &after) {
			return
		}
	}
}

// current returns the settings that were set last; the zero value before that.
func (e *Exposer) current() objects.Settings {
	if settings := e.settings.Load(); settings != nil {
		return *settings
	}
	return objects.Settings{}
}

// Existing is what the caches hold of an exposure.
type Existing struct {
	Pod    *corev1.Pod // the mover; nil if there is none
	Force  bool        // no kubelet confirms the end of the pod, so its deletion is forced
	Claims []*corev1.PersistentVolumeClaim
	// HandedOver reports that this process deleted the original VolumeSnapshot, so a cache miss needs no GET.
	HandedOver bool
}

// adoption returns the patch that labels an existing object of the same custom resource as Lateen's. It is nil if
// the object already has the labels. The error says that the object belongs to something else.
func adoption(what string, have, want metav1.Object) ([]byte, error) {
	owner := metav1.GetControllerOfNoCopy(want)
	switch {
	case owner == nil:
		return nil, errors.New("adopt " + what + " without an owner")
	case !objects.OwnedBy(have, owner.UID):
		return nil, fmt.Errorf("%s %s/%s exists but has another owner; delete it to unblock the transfer", what, have.GetNamespace(), have.GetName())
	case have.GetLabels()[api.LabelExposer] != "":
		return nil, nil
	}
	return json.Marshal(objects.Labelled(owner.UID, want.GetLabels()[api.LabelExposer]))
}
