package csi

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	snapshotlisters "github.com/kubernetes-csi/external-snapshotter/client/v8/listers/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// bySource is the index of claims by the VolumeSnapshot in their data source.
const bySource = "source"

// caches are the sidecars' caches of the cluster.
type caches struct {
	claims          corelisters.PersistentVolumeClaimLister
	volumes         corelisters.PersistentVolumeLister
	classes         storagelisters.StorageClassLister
	attachments     storagelisters.VolumeAttachmentLister
	snapshots       snapshotlisters.VolumeSnapshotLister
	contents        snapshotlisters.VolumeSnapshotContentLister
	snapshotClasses snapshotlisters.VolumeSnapshotClassLister

	claimsBySource cache.Indexer
	handled        []cache.ResourceEventHandlerRegistration
	informers      []cache.SharedIndexInformer
}

// newCaches creates the caches and their event handlers, which enqueue changed objects.
func newCaches(core informers.SharedInformerFactory, snapshots snapshotinformers.SharedInformerFactory, d *Driver) (*caches, error) {
	claims, volumes := core.Core().V1().PersistentVolumeClaims(), core.Core().V1().PersistentVolumes()
	attachments := core.Storage().V1().VolumeAttachments()
	group := snapshots.Snapshot().V1()
	c := &caches{
		claims: claims.Lister(), volumes: volumes.Lister(), classes: core.Storage().V1().StorageClasses().Lister(),
		attachments: attachments.Lister(),
		snapshots:   group.VolumeSnapshots().Lister(), contents: group.VolumeSnapshotContents().Lister(),
		snapshotClasses: group.VolumeSnapshotClasses().Lister(),
		claimsBySource:  claims.Informer().GetIndexer(),
		informers: []cache.SharedIndexInformer{
			claims.Informer(), volumes.Informer(), attachments.Informer(), core.Storage().V1().StorageClasses().Informer(),
			group.VolumeSnapshots().Informer(), group.VolumeSnapshotContents().Informer(), group.VolumeSnapshotClasses().Informer(),
		},
	}
	if err := claims.Informer().AddIndexers(cache.Indexers{bySource: sourceOf}); err != nil {
		return nil, err
	}
	return c, errors.Join(
		c.handle(claims.Informer(), func(object any) { enqueueClaim(d, object) }),
		c.handle(volumes.Informer(), func(object any) { enqueueVolume(d, object) }),
		c.handle(attachments.Informer(), func(object any) { enqueueAttachment(d, object) }),
		c.handle(group.VolumeSnapshots().Informer(), func(object any) { c.enqueueMadeOf(d, object) }),
		c.handle(group.VolumeSnapshotContents().Informer(), func(object any) { c.enqueueContent(d, object) }),
	)
}

// handle calls changed for every new or changed object. A deleted object needs no work.
func (c *caches) handle(informer cache.SharedIndexInformer, changed func(object any)) error {
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) },
	})
	c.handled = append(c.handled, registration)
	return err
}

// wait waits until all caches have synced.
func (c *caches) wait(ctx context.Context) error {
	synced := make([]cache.InformerSynced, 0, len(c.informers)+len(c.handled))
	for _, informer := range c.informers {
		synced = append(synced, informer.HasSynced)
	}
	for _, handler := range c.handled {
		synced = append(synced, handler.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return fmt.Errorf("list volumes, claims and snapshots: %w", context.Cause(ctx))
	}
	return nil
}

func enqueueClaim(d *Driver, object any) {
	if claim, ok := object.(*corev1.PersistentVolumeClaim); ok && claim.Spec.VolumeName == "" {
		d.queue.Add(key{kind: claimKind, namespace: claim.Namespace, name: claim.Name})
	}
}

func enqueueVolume(d *Driver, object any) {
	if volume, ok := object.(*corev1.PersistentVolume); ok && d.owns(volume) {
		d.queue.Add(key{kind: volumeKind, name: volume.Name})
	}
}

func enqueueAttachment(d *Driver, object any) {
	if attachment, ok := object.(*storagev1.VolumeAttachment); ok && attachment.Spec.Attacher == d.options.Driver {
		d.queue.Add(key{kind: attachmentKind, name: attachment.Name})
	}
}

func (c *caches) enqueueMadeOf(d *Driver, object any) {
	if snapshot, ok := object.(*snapshotv1.VolumeSnapshot); ok {
		c.enqueueClaimsOf(d, snapshot.Namespace, snapshot.Name)
	}
}

func (c *caches) enqueueContent(d *Driver, object any) {
	content, ok := object.(*snapshotv1.VolumeSnapshotContent)
	if !ok || content.Spec.Driver != d.options.Driver {
		return
	}
	d.queue.Add(key{kind: contentKind, name: content.Name})
	c.enqueueClaimsOf(d, content.Spec.VolumeSnapshotRef.Namespace, content.Spec.VolumeSnapshotRef.Name)
}

// enqueueClaimsOf enqueues the claims that wait for a VolumeSnapshot.
func (c *caches) enqueueClaimsOf(d *Driver, namespace, name string) {
	waiting, err := c.claimsBySource.ByIndex(bySource, namespace+"/"+name)
	if err != nil {
		return // impossible: newCaches has created the index
	}
	for _, claim := range waiting {
		enqueueClaim(d, claim)
	}
}

func sourceOf(object any) ([]string, error) {
	claim, ok := object.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Spec.DataSource == nil || claim.Spec.DataSource.Kind != snapshotKind {
		return nil, nil
	}
	return []string{claim.Namespace + "/" + claim.Spec.DataSource.Name}, nil
}

// newRecorder sends Events about claims, volumes and contents.
func newRecorder(broadcaster record.EventBroadcaster, client kubernetes.Interface, driver string) (record.EventRecorder, error) {
	known := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(known), snapshotv1.AddToScheme(known)); err != nil {
		return nil, fmt.Errorf("know types: %w", err)
	}
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return broadcaster.NewRecorder(known, corev1.EventSource{Component: driver}), nil
}
