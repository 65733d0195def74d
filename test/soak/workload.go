package main

import (
	"context"
	"errors"
	"fmt"

	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// workload is a transfer and what belongs to it.
type workload struct {
	kind testenv.Kind
	name string
	uid  types.UID
	// loseTarget deletes what is restored into; nil if nothing is.
	loseTarget func(ctx context.Context) error
	// check looks for what a transfer that has ended like this promises; lost says that its target was deleted.
	check func(ctx context.Context, ended transferState, lost bool) error
	// clean removes what the transfer had around it.
	clean func(ctx context.Context) error
}

// begin makes a transfer of a kind with all that it needs.
func (s *env) begin(ctx context.Context, kind testenv.Kind, number int) (*workload, error) {
	switch kind {
	case testenv.PodVolumeBackup:
		return s.beginBackup(ctx, number)
	case testenv.PodVolumeRestore:
		return s.beginRestore(ctx, number)
	case testenv.DataUpload:
		return s.beginUpload(ctx, number)
	default:
		return s.beginDownload(ctx)
	}
}

func (s *env) beginBackup(ctx context.Context, number int) (*workload, error) {
	source := s.sources[number%len(s.sources)]
	created, err := s.PodVolumeBackup(ctx, s.backup, source, "data")
	if err != nil {
		return nil, err
	}
	return &workload{
		kind: testenv.PodVolumeBackup, name: created.Name, uid: created.UID,
		check: func(_ context.Context, ended transferState, _ bool) error { return s.uploaded(ended, source.UID) },
		clean: func(context.Context) error { return nil },
	}, nil
}

func (s *env) beginRestore(ctx context.Context, number int) (*workload, error) {
	pod, err := s.RestorePod(ctx, s.restore, s.name("restored"), s.Nodes[number%len(s.Nodes)].Name(), testenv.EmptyDir("data"))
	if err != nil {
		return nil, err
	}
	created, err := s.PodVolumeRestore(ctx, s.restore, pod, "data", "a-snapshot", s.Apps)
	if err != nil {
		return nil, err
	}
	remove := func(ctx context.Context) error {
		return ignoreGone(s.Kube.CoreV1().Pods(s.Apps).Delete(ctx, pod.Name, metav1.DeleteOptions{}))
	}
	return &workload{
		kind: testenv.PodVolumeRestore, name: created.Name, uid: created.UID, loseTarget: remove,
		check: func(ctx context.Context, ended transferState, lost bool) error {
			if ended.last.Status.Phase != testenv.Completed || lost {
				return nil
			}
			if _, err := s.WaitPod(ctx, s.Apps, pod.Name, testenv.Ready); err != nil {
				return err
			}
			dir, err := s.Nodes[0].VolumeDir(ctx, pod, "data") // all have one root
			if err != nil {
				return err
			}
			return restoredTo(dir, ended)
		},
		clean: func(ctx context.Context) error {
			return errors.Join(remove(ctx), s.WaitPodGone(ctx, s.Apps, pod.Name))
		},
	}, nil
}

func (s *env) beginUpload(ctx context.Context, number int) (*workload, error) {
	claim := s.claims[number%len(s.claims)]
	snapshot, err := s.Snapshot(ctx, s.backup, claim, storageClass)
	if err != nil {
		return nil, err
	}
	snapshot, handle, err := s.Handle(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	content := *snapshot.Status.BoundVolumeSnapshotContentName
	created, err := s.DataUpload(ctx, s.backup, claim, velerov2alpha1.CSISnapshotSpec{
		VolumeSnapshot: snapshot.Name, SnapshotClass: storageClass, Driver: s.Driver.Name(),
	})
	if err != nil {
		return nil, err
	}
	s.handles.Store(handle, created.Name)
	return &workload{
		kind: testenv.DataUpload, name: created.Name, uid: created.UID,
		check: func(_ context.Context, ended transferState, _ bool) error {
			if count := s.Driver.Deletions(handle); ended.owned && count != 1 {
				return fmt.Errorf("its snapshot %s was deleted %d times", handle, count)
			}
			return s.uploaded(ended, claim.UID)
		},
		clean: func(ctx context.Context) error { // an upload that nobody has accepted leaves its snapshot alone
			return errors.Join(
				ignoreGone(s.Snapshots.SnapshotV1().VolumeSnapshots(s.Apps).Delete(ctx, snapshot.Name, metav1.DeleteOptions{})),
				s.WaitContentGone(ctx, content))
		},
	}, nil
}

func (s *env) beginDownload(ctx context.Context) (*workload, error) {
	claim, err := s.TargetClaim(ctx, s.name("target"), storageClass)
	if err != nil {
		return nil, err
	}
	created, err := s.DataDownload(ctx, s.restore, claim, "a-snapshot")
	if err != nil {
		return nil, err
	}
	return &workload{
		kind: testenv.DataDownload, name: created.Name, uid: created.UID,
		loseTarget: func(ctx context.Context) error {
			return ignoreGone(s.Kube.CoreV1().PersistentVolumeClaims(s.Apps).Delete(ctx, claim.Name, metav1.DeleteOptions{}))
		},
		check: func(ctx context.Context, ended transferState, lost bool) error {
			if ended.last.Status.Phase == testenv.Completed && !lost {
				return s.delivered(ctx, claim.Name, ended)
			}
			return s.nameKept(ctx, ended)
		},
		clean: func(ctx context.Context) error { return s.dropTarget(ctx, claim.Name, created.Name) },
	}, nil
}

// uploaded wants a backup that is completed to have read its own source.
func (s *env) uploaded(ended transferState, source types.UID) error {
	if ended.last.Status.Phase != testenv.Completed {
		return nil
	}
	data, ok := s.Movers.Uploaded(ended.last.UID)
	if want := node.Data(source, ""); !ok || data != want {
		return fmt.Errorf("its mover has read %q, want %q", data, want)
	}
	return nil
}

// restoredTo wants a volume to have what a restore has written.
func restoredTo(dir string, ended transferState) error {
	data, err := node.ReadData(dir)
	if want := node.Data(ended.last.UID, ended.last.Spec.SnapshotID); err == nil && data != want {
		err = fmt.Errorf("its volume has %q, want %q", data, want)
	}
	return err
}

// delivered wants a claim to be bound to a volume that exists, is its own, is what its class says and has what was restored.
func (s *env) delivered(ctx context.Context, name string, ended transferState) error {
	claim, err := s.WaitClaim(ctx, s.Apps, name, testenv.Bound)
	if err != nil {
		return fmt.Errorf("it is not delivered: %w", err)
	}
	volume, err := s.Kube.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("it is not delivered: %w", err)
	}
	switch owner := volume.Spec.ClaimRef; {
	case owner == nil || owner.UID != claim.UID:
		return fmt.Errorf("volume %s is not that of claim %s", volume.Name, name)
	case volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		return fmt.Errorf("volume %s of claim %s is to be %s", volume.Name, name, volume.Spec.PersistentVolumeReclaimPolicy)
	case !s.hasVolume(volume):
		return fmt.Errorf("the driver has no volume %s of claim %s", volume.Name, name)
	}
	return restoredTo(s.Driver.VolumeDir(volume.Spec.CSI.VolumeHandle), ended)
}

// nameKept wants the message of a download that was not delivered to name the volume that was kept of it.
func (s *env) nameKept(ctx context.Context, ended transferState) error {
	kept, err := s.kept(ctx, ended.last.Name)
	if err != nil {
		return err
	}
	for i := range kept {
		message := ended.last.Status.Message
		if !ended.gone && !containsName(message, kept[i].Name) {
			return fmt.Errorf("volume %s is kept, and the message says only %q", kept[i].Name, message)
		}
		if !s.hasVolume(&kept[i]) {
			return fmt.Errorf("volume %s is kept, and the driver does not have it", kept[i].Name)
		}
		if err := restoredTo(s.Driver.VolumeDir(kept[i].Spec.CSI.VolumeHandle), ended); err != nil {
			return err
		}
	}
	return nil
}

// kept are the volumes that are kept of a download.
func (s *env) kept(ctx context.Context, name string) ([]corev1.PersistentVolume, error) {
	list, err := s.Kube.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: api.LabelKept + "=" + name})
	if err != nil {
		return nil, fmt.Errorf("list volumes that are kept: %w", err)
	}
	return list.Items, nil
}

// dropTarget removes the target of a download with its volume, and what was kept of it.
func (s *env) dropTarget(ctx context.Context, target, name string) error {
	claims := s.Kube.CoreV1().PersistentVolumeClaims(s.Apps)
	claim, err := claims.Get(ctx, target, metav1.GetOptions{})
	if err == nil {
		err = claims.Delete(ctx, target, metav1.DeleteOptions{})
	}
	if err == nil && claim.Spec.VolumeName != "" {
		err = s.WaitVolumeGone(ctx, claim.Spec.VolumeName)
	}
	if ignoreGone(err) != nil {
		return fmt.Errorf("remove target %s: %w", target, err)
	}
	kept, err := s.kept(ctx, name)
	if err != nil {
		return err
	}
	for _, volume := range kept {
		patch := []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
		_, err := s.Kube.CoreV1().PersistentVolumes().Patch(ctx, volume.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err := errors.Join(ignoreGone(err), s.WaitVolumeGone(ctx, volume.Name)); err != nil {
			return fmt.Errorf("remove the volume that is kept of %s: %w", name, err)
		}
	}
	return nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
