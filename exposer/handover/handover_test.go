package handover

import (
	"cmp"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// handedOver has both pairs. The next step of a hand-over is to delete the original VolumeSnapshot.
func handedOver() simulatedPairs {
	return simulatedPairs{
		original: simulatedObject{exists: true, ready: true}, content: simulatedObject{exists: true, handle: true, retained: true},
		backup: simulatedObject{exists: true}, backupContent: simulatedObject{exists: true, handle: true, protected: true},
	}
}

// described returns a step and its message.
func described(step Step, description string) string {
	if description == "" {
		return step.String()
	}
	return step.String() + ": " + description
}

// alone has no backup pair.
func alone(change func(*simulatedPairs)) func(*simulatedPairs) {
	return func(p *simulatedPairs) {
		p.backup, p.backupContent = simulatedObject{}, simulatedObject{}
		change(p)
	}
}

func TestStepsOfAHandOver(t *testing.T) {
	const (
		snapshotConflict = "NameConflict: VolumeSnapshot velero/du exists but has another owner; delete it to unblock the transfer"
		contentConflict  = "NameConflict: VolumeSnapshotContent du exists but has another owner; delete it to unblock the transfer"
		notReady         = "AwaitSnapshot: VolumeSnapshot apps/snap is not ready"
		contentDeleting  = "Fail: VolumeSnapshotContent content of VolumeSnapshot apps/snap is being deleted"
		notBound         = "AwaitSnapshot: VolumeSnapshotContent content is not bound to VolumeSnapshot apps/snap"
	)
	unchanged := func(*simulatedPairs) {}
	unready := alone(func(p *simulatedPairs) { p.original.ready = false })
	half := func(p *simulatedPairs) { p.backupContent.exists = false }
	for name, test := range map[string]struct {
		pairs  func(*simulatedPairs)
		change func(*State)
		cached string // with caches that may lag behind; empty: as verified
		want   string // if the API server has no other objects
	}{
		"it owns all objects": {cached: "DeleteOriginal", want: "DeleteOriginal"},
		"a VolumeSnapshot of another resource": {
			change: func(h *State) { h.Backup.Snapshot.Labels, h.Backup.Content = objects.OwnerLabels("another", "n1"), nil }, want: snapshotConflict,
		},
		"a VolumeSnapshot that was created by hand": {
			change: func(h *State) {
				h.Backup.Snapshot.Labels, h.Backup.Snapshot.Spec.Source.VolumeSnapshotContentName, h.Backup.Content = nil, nil, nil
			},
			want: snapshotConflict,
		},
		"a content of another resource": {change: func(h *State) { h.Backup.Content.Labels = objects.OwnerLabels("another", "n1") }, want: contentConflict},
		"a content that was created by hand": {
			change: func(h *State) { h.Backup.Content.Labels, h.Backup.Content.Spec.Source.SnapshotHandle = nil, nil }, want: contentConflict,
		},
		"a content of Velero's agent in another namespace": {
			change: func(h *State) {
				h.Backup.Content.Labels, h.Backup.Content.Spec.VolumeSnapshotRef.Namespace = nil, "app"
			}, want: contentConflict,
		},
		"a content being deleted": {pairs: func(p *simulatedPairs) { p.backupContent.deleting = true }, want: "Fail: VolumeSnapshotContent du is being deleted"},
		"a content of an earlier VolumeSnapshot with the same name": {
			pairs:  func(p *simulatedPairs) { p.content.exists = false },
			change: func(h *State) { h.Backup.Content.Spec.VolumeSnapshotRef.UID = "earlier-uid" },
			cached: "Reobserve", want: "Fail: VolumeSnapshotContent du is bound to an earlier VolumeSnapshot of the same name",
		},
		"a content that is not bound yet": {change: func(h *State) { h.Backup.Content.Spec.VolumeSnapshotRef.UID = "" }, want: "DeleteOriginal"},
		"a VolumeSnapshot that was deleted": {
			pairs: func(p *simulatedPairs) { p.backup.exists = false }, cached: "Reobserve",
			want: "Fail: VolumeSnapshot velero/du was deleted after the hand-over of the snapshot",
		},
		"a VolumeSnapshot being deleted": {pairs: func(p *simulatedPairs) { p.backup.deleting = true }, want: "Fail: VolumeSnapshot velero/du is being deleted"},
		"a VolumeSnapshot that is being deleted, without its original": {
			pairs:  func(p *simulatedPairs) { p.backup.deleting, p.original.exists = true, false },
			cached: "Reobserve", want: "Fail: VolumeSnapshot velero/du is being deleted",
		},
		"a VolumeSnapshot of Velero's agent":           {pairs: func(p *simulatedPairs) { p.backup.creator = velero }, want: "AdoptSnapshot"},
		"a content of Velero's agent":                  {pairs: func(p *simulatedPairs) { p.backupContent.creator = velero }, want: "AdoptContent"},
		"an original content without a VolumeSnapshot": {pairs: func(p *simulatedPairs) { p.original.exists = false }, want: "DeleteOriginalContent"},
		"an original content that is being deleted":    {pairs: func(p *simulatedPairs) { p.original.exists, p.content.deleting = false, true }, want: "Finished"},
		"no original": {pairs: func(p *simulatedPairs) { *p = simulatedPairs{} }, cached: "Reobserve", want: "Fail: VolumeSnapshot apps/snap does not exist"},
		"an original that is being deleted": {
			pairs: alone(func(p *simulatedPairs) { p.original.deleting = true }), cached: "Reobserve", want: "Fail: VolumeSnapshot apps/snap is being deleted",
		},
		"an original that is not ready": {
			pairs: unready,
			change: func(h *State) {
				h.Original.Snapshot.Status.Error = &snapshotv1.VolumeSnapshotError{Message: new("the array is full")}
			},
			want: notReady + ": the array is full",
		},
		"an original with an error without a message": {
			pairs: unready, change: func(h *State) { h.Original.Snapshot.Status.Error = &snapshotv1.VolumeSnapshotError{} }, want: notReady,
		},
		"an original without a status": {pairs: alone(unchanged), change: func(h *State) { h.Original.Snapshot.Status = nil }, want: notReady},
		"an original without a content": {
			pairs:  alone(func(p *simulatedPairs) { p.content.exists = false }),
			cached: "Reobserve", want: "Fail: VolumeSnapshotContent content of VolumeSnapshot apps/snap does not exist",
		},
		"an original content that is deleted with its handle": {
			pairs:  alone(func(p *simulatedPairs) { p.content.deleting, p.content.retained, p.backup.exists = true, false, true }),
			cached: "Reobserve", want: contentDeleting,
		},
		"an original content that will be deleted with its handle": {
			pairs: func(p *simulatedPairs) {
				p.content.markedBeingDeleted, p.content.retained, p.backupContent.exists = true, false, false
			},
			cached: "Reobserve", want: contentDeleting,
		},
		"an original content of another VolumeSnapshot": {
			pairs: half, change: func(h *State) { h.Original.Content.Spec.VolumeSnapshotRef.Name = "other" }, want: notBound,
		},
		"an original content of another namespace": {
			pairs: half, change: func(h *State) { h.Original.Content.Spec.VolumeSnapshotRef.Namespace = "other" }, want: notBound,
		},
		"an original content without a handle": {
			pairs: half, change: func(h *State) { h.Original.Content.Status.SnapshotHandle = nil },
			want: "AwaitSnapshot: VolumeSnapshotContent content has no snapshot handle yet",
		},
		"a half of Velero's agent":              {pairs: func(p *simulatedPairs) { p.backup.creator, p.backupContent.exists = velero, false }, want: "AdoptSnapshot"},
		"an original whose content was deleted": {pairs: func(p *simulatedPairs) { p.content.exists = false }, cached: "Reobserve", want: "DeleteOriginal"},
		"an original that is not bound": {
			pairs: alone(unchanged), change: func(h *State) { h.Original.Snapshot.Status.BoundVolumeSnapshotContentName = nil }, want: notReady,
		},
		"an original of unknown readiness": {pairs: alone(unchanged), change: func(h *State) { h.Original.Snapshot.Status.ReadyToUse = nil }, want: notReady},
		"an original content that is deleted without its handle": {
			pairs: func(p *simulatedPairs) { p.content.deleting, p.backupContent.exists = true, false }, want: "CreateContent",
		},
		"a VolumeSnapshot of another content": {
			change: func(h *State) {
				h.Backup.Snapshot.Labels, h.Backup.Snapshot.Spec.Source.VolumeSnapshotContentName, h.Backup.Content = nil, new("other"), nil
			}, want: snapshotConflict,
		},
		"a content of Velero's agent of another VolumeSnapshot": {
			change: func(h *State) { h.Backup.Content.Labels, h.Backup.Content.Spec.VolumeSnapshotRef.Name = nil, "other" }, want: contentConflict,
		},
		"a half that is being deleted": {
			pairs:  func(p *simulatedPairs) { p.backup.deleting, p.backupContent.exists = true, false },
			cached: "Reobserve", want: "Fail: VolumeSnapshot velero/du is being deleted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pairs := handedOver()
			if test.pairs != nil {
				test.pairs(&pairs)
			}
			for verified, want := range map[bool]string{true: test.want, false: cmp.Or(test.cached, test.want)} {
				h := pairs.state(verified)
				if test.change != nil {
					test.change(&h)
				}
				require.Equal(t, want, described(h.Next()))
			}
		})
	}
}

func TestStepsOfACleanUp(t *testing.T) {
	for name, test := range map[string]struct {
		pairs  func(*simulatedPairs)
		cached string // with caches that may lag behind; empty: as verified
		want   string // if the API server has no other objects
	}{
		"the backup pair alone": {pairs: func(p *simulatedPairs) { p.original, p.content = simulatedObject{}, simulatedObject{} }, want: "DeleteBackup"},
		"the original waits for its content": {
			pairs: func(p *simulatedPairs) { p.original.deleting, p.content.exists = true, false },
			want:  "AwaitSnapshot: VolumeSnapshot apps/snap is being deleted",
		},
		"an original content that the driver deletes": {
			pairs: func(p *simulatedPairs) {
				p.original.exists, p.content.deleting, p.content.markedBeingDeleted = false, true, true
			},
			want: "AwaitSnapshot: VolumeSnapshotContent content is being deleted by CSI driver ; " +
				"see kubectl describe volumesnapshotcontent content",
		},
		"a content that nothing protects yet": {
			pairs: func(p *simulatedPairs) {
				p.original, p.content, p.backupContent.protected = simulatedObject{}, simulatedObject{}, false
			},
			want: "AwaitSnapshot: VolumeSnapshotContent du has no finalizer of the snapshot-controller yet",
		},
		"a content that the snapshot-controller deletes with its VolumeSnapshot": {
			pairs: func(p *simulatedPairs) {
				p.original, p.content, p.backup.deleting = simulatedObject{}, simulatedObject{}, true
			},
			want: "AwaitSnapshot: VolumeSnapshotContent du is being deleted by CSI driver ; see kubectl describe volumesnapshotcontent du",
		},
		"a content whose VolumeSnapshot was deleted, or is not cached yet": {
			pairs: func(p *simulatedPairs) {
				p.original, p.content, p.backup = simulatedObject{}, simulatedObject{}, simulatedObject{}
			},
			cached: "Reobserve", want: "MarkBackupContentBeingDeleted",
		},
		"a half is being deleted": {
			pairs: func(p *simulatedPairs) { *p = simulatedPairs{backup: simulatedObject{exists: true, deleting: true}} },
			want:  "AwaitSnapshot: VolumeSnapshot velero/du is being deleted",
		},
		"a half is being deleted, and the original content is left": {
			pairs:  alone(func(p *simulatedPairs) { p.original.exists, p.backup.exists, p.backup.deleting = false, true, true }),
			cached: "Reobserve", want: "SetDeletePolicyOfOriginal",
		},
		"a half is being deleted, and the original is left without its content": {
			pairs:  alone(func(p *simulatedPairs) { p.content.exists, p.backup.exists, p.backup.deleting = false, true, true }),
			cached: "Reobserve", want: "DeleteOriginal",
		},
		"a half alone": {
			pairs:  func(p *simulatedPairs) { *p = simulatedPairs{backup: simulatedObject{exists: true}} },
			cached: "Reobserve", want: "DeleteBackup",
		},
		"the original pair alone": {pairs: alone(func(p *simulatedPairs) { p.content.retained = false }), cached: "Reobserve", want: "DeleteOriginal"},
		"the original pair is being deleted": {
			pairs: alone(func(p *simulatedPairs) {
				p.content.retained, p.original.deleting, p.content.deleting = false, true, true
			}),
			cached: "AwaitSnapshot: VolumeSnapshot apps/snap is being deleted", want: "AwaitSnapshot: VolumeSnapshot apps/snap is being deleted",
		},
		"the original pair is being deleted without its handle": {
			pairs:  alone(func(p *simulatedPairs) { p.original.deleting, p.content.deleting = true, true }),
			cached: "Reobserve", want: "SetDeletePolicyOfOriginal",
		},
		"the original pair alone, which its controller protects": {
			pairs: alone(func(p *simulatedPairs) { p.content.retained, p.content.protected = false, true }), cached: "Reobserve", want: "DeleteOriginalContent",
		},
		"a half, and the original content": {
			pairs: func(p *simulatedPairs) {
				p.original.exists, p.content.retained, p.content.protected, p.backupContent.exists = false, false, true, false
			},
			cached: "Reobserve", want: "MarkOriginalContentBeingDeleted",
		},
		"the original is being deleted before its content": {pairs: func(p *simulatedPairs) { p.original.deleting = true }, want: "DeleteOriginalContent"},
		"the original pair is being deleted, its content not yet": {
			pairs:  alone(func(p *simulatedPairs) { p.content.retained, p.original.deleting = false, true }),
			cached: "Reobserve", want: "AwaitSnapshot: VolumeSnapshot apps/snap is being deleted",
		},
		"a content that is being deleted with another finalizer": {
			pairs: func(p *simulatedPairs) {
				p.original, p.content, p.backupContent.deleting, p.backupContent.protected = simulatedObject{}, simulatedObject{}, true, false
			}, want: "DeleteBackup",
		},
		"a content that its controller has marked": {
			pairs: func(p *simulatedPairs) {
				p.original, p.content, p.backup, p.backupContent.markedBeingDeleted = simulatedObject{}, simulatedObject{}, simulatedObject{}, true
			}, want: "DeleteBackupContent",
		},
		"objects of another transfer": {
			pairs: func(p *simulatedPairs) {
				*p = simulatedPairs{backup: simulatedObject{exists: true, creator: anotherTransfer}, backupContent: simulatedObject{exists: true, creator: anotherTransfer}}
			},
			cached: "Reobserve", want: "Finished",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pairs := handedOver()
			test.pairs(&pairs)
			require.Equal(t, test.want, described(pairs.state(true).NextCleanup()))
			require.Equal(t, cmp.Or(test.cached, test.want), described(pairs.state(false).NextCleanup()))
		})
	}
}

// The snapshot-controller deletes no VolumeSnapshot without a class, such as one of a group, unless its driver has a default class.
func TestACleanUpQuotesTheSnapshotController(t *testing.T) {
	pairs := handedOver()
	pairs.original.deleting, pairs.content.exists = true, false
	state := pairs.state(true)
	state.Original.Snapshot.Status.Error = &snapshotv1.VolumeSnapshotError{Message: new("no default class")}
	require.Equal(t, "AwaitSnapshot: VolumeSnapshot apps/snap is being deleted: no default class", described(state.NextCleanup()))
}

func TestTheBackupPairHasWhatItsOriginalHas(t *testing.T) {
	h := handedOver().state(true)
	size := resource.MustParse("5Gi")
	class := new("csi")
	h.Original.Snapshot.Annotations, h.Original.Snapshot.Spec.VolumeSnapshotClassName = map[string]string{"note": "mine"}, class
	h.Original.Snapshot.Status.RestoreSize = &size
	h.Original.Content.Spec.Driver, h.Original.Content.Spec.VolumeSnapshotClassName = "driver", class
	h.Original.Content.Labels = map[string]string{labelManagedBy: "n7", "other": "x"}
	h.Original.Content.Annotations = map[string]string{"note": "mine", annotationBeingDeleted: "yes", annotationBeingCreated: "yes"}
	h.Backup.Snapshot.UID = "backup-uid"

	labels := h.OwnerLabels()
	require.Equal(t, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "du", Labels: labels, Annotations: map[string]string{
			"note": "mine", api.AnnotationSourceSnapshot: "apps/snap", api.AnnotationSourceContent: "content", api.AnnotationRestoreSize: "5Gi",
		}},
		Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: new("du")}, VolumeSnapshotClassName: class},
	}, h.BackupSnapshot())
	require.Equal(t, size, h.RestoreSize())
	labels[labelManagedBy] = "n7"
	require.Equal(t, &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "du", Labels: labels, Annotations: map[string]string{
			"note": "mine", "snapshot.storage.kubernetes.io/allow-volume-mode-change": "true",
		}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				Kind: "VolumeSnapshot", APIVersion: "snapshot.storage.k8s.io/v1", Namespace: "velero", Name: "du", UID: "backup-uid",
			},
			Source:         snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: new("handle")},
			DeletionPolicy: "Delete", Driver: "driver", VolumeSnapshotClassName: class,
		},
	}, h.BackupContent())
	h.KeepsRetained = true
	require.Equal(t, snapshotv1.VolumeSnapshotContentRetain, h.BackupContent().Spec.DeletionPolicy)
}

func TestChangedBlocks(t *testing.T) {
	h := handedOver().state(true)
	h.Backup.Content.Spec.Source.SnapshotHandle = new("handle")
	require.Equal(t, &objects.ChangedBlocks{Change: "handle", Volume: "volume", Snapshot: "du"}, h.ChangedBlocks("volume"))
	h.Backup.Snapshot.Annotations = map[string]string{"csi.vsphere.volume/snapshot": "disk+snap", "csi.vsphere.volume/change-id": "52/7"}
	require.Equal(t, &objects.ChangedBlocks{Change: "52/7", Volume: "disk", Snapshot: "du"}, h.ChangedBlocks("volume"))
	h.Backup.Snapshot.Annotations["csi.vsphere.volume/snapshot"] = "disk"
	require.Empty(t, h.ChangedBlocks("volume").Volume)
	delete(h.Backup.Snapshot.Annotations, "csi.vsphere.volume/change-id")
	require.Empty(t, h.ChangedBlocks("volume").Change)
	h.Backup.Snapshot.Annotations = map[string]string{"csi.vsphere.volume/change-id": "52/7"}
	require.Equal(t, &objects.ChangedBlocks{Change: "52/7", Snapshot: "du"}, h.ChangedBlocks("volume"))
}

func TestTheContentOfASource(t *testing.T) {
	h := handedOver().state(true)
	h.Original.Snapshot.Status.BoundVolumeSnapshotContentName = new("bound")
	require.Equal(t, "content", h.SourceContent(), "the annotation of the backup counts")
	require.NotContains(t, h.Annotations(), api.AnnotationRestoreSize)
	step, _ := h.Next()
	require.Equal(t, DeleteOriginalContent, step, "a VolumeSnapshot with another content was recreated")
	step, _ = h.NextCleanup()
	require.Equal(t, MarkOriginalContentBeingDeleted, step, "nor is it deleted")
	require.Equal(t, resource.Quantity{}, h.RestoreSize())
	delete(h.Backup.Snapshot.Annotations, api.AnnotationSourceContent)
	require.False(t, h.isRecreatedSource(), "an agent of Velero has created it")
	require.Equal(t, "bound", h.SourceContent())
	h.Original.Snapshot.Status.BoundVolumeSnapshotContentName, h.Original.Snapshot.Spec.Source.VolumeSnapshotContentName = nil, new("static")
	require.Equal(t, "static", h.SourceContent())
	h.Original.Snapshot.Status, h.Original.Snapshot.Spec.Source.VolumeSnapshotContentName = nil, nil
	require.Equal(t, "snapcontent-snap-uid", h.SourceContent())
	require.NotContains(t, h.Annotations(), api.AnnotationRestoreSize)
	h.Original.Snapshot, h.Backup.Snapshot = nil, nil
	require.Empty(t, h.SourceContent())
	require.NotContains(t, h.Annotations(), api.AnnotationSourceContent)
}
