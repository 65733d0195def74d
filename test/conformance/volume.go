package conformance

import (
	"context"
	"encoding/json"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

// prepare makes what is moved, and how its resource is made.
func (s *caseRun) prepare(ctx context.Context) error {
	switch s.testCase.Kind {
	case testenv.PodVolumeBackup:
		return s.preparePodVolumeBackup(ctx)
	case testenv.PodVolumeRestore:
		return s.preparePodVolumeRestore(ctx)
	case testenv.DataUpload:
		return s.prepareDataUpload(ctx)
	case repository:
		return s.prepareRepository()
	default:
		return s.prepareDataDownload(ctx)
	}
}

func (s *caseRun) preparePodVolumeBackup(ctx context.Context) error {
	volume, err := s.podVolume(ctx)
	if err != nil {
		return err
	}
	created, err := s.SourcePod(ctx, "app", s.placeholders.of("NODE"), volume)
	if err != nil {
		return err
	}
	pod, err := s.ready(ctx, created.Name, testenv.Ready)
	if err != nil {
		return err
	}
	if err := s.fillPod(ctx, pod); err != nil {
		return err
	}
	backup, err := s.backup(ctx)
	if err != nil {
		return err
	}
	s.create = func(ctx context.Context, alter func(metav1.Object) error) (metav1.Object, error) {
		var unread error
		created, err := s.PodVolumeBackup(ctx, backup, pod, "data", func(wanted *velerov1.PodVolumeBackup) { unread = alter(wanted) })
		return created, firstError(unread, err)
	}
	return nil
}

func (s *caseRun) preparePodVolumeRestore(ctx context.Context) error {
	volume, err := s.podVolume(ctx)
	if err != nil {
		return err
	}
	restore, err := s.restore(ctx)
	if err != nil {
		return err
	}
	created, err := s.RestorePod(ctx, restore, "app", s.placeholders.of("NODE"), volume)
	if err != nil {
		return err
	}
	pod, err := s.ready(ctx, created.Name, testenv.WaitsForRestore)
	if err != nil {
		return err
	}
	s.create = func(ctx context.Context, alter func(metav1.Object) error) (metav1.Object, error) {
		var unread error
		created, err := s.PodVolumeRestore(ctx, restore, pod, "data", "a-snapshot", s.Apps,
			func(wanted *velerov1.PodVolumeRestore) { unread = alter(wanted) })
		return created, firstError(unread, err)
	}
	return nil
}

// backup makes the Backup that owns what is backed up.
func (s *caseRun) backup(ctx context.Context) (*velerov1.Backup, error) {
	created, err := s.Backup(ctx, "nightly")
	if err == nil {
		s.placeholders.set("OWNER", string(created.UID))
	}
	return created, err
}

// restore makes the Restore that owns what is restored.
func (s *caseRun) restore(ctx context.Context) (*velerov1.Restore, error) {
	created, err := s.Restore(ctx, "nightly")
	if err == nil {
		s.placeholders.set("OWNER", string(created.UID))
	}
	return created, err
}

// podVolume is the volume of a pod that is backed up or restored.
func (s *caseRun) podVolume(ctx context.Context) (corev1.Volume, error) {
	if !s.testCase.Volume.Claim {
		return testenv.EmptyDir("data"), nil
	}
	mode := corev1.PersistentVolumeFilesystem
	if s.testCase.Volume.Block {
		mode = corev1.PersistentVolumeBlock
	}
	source := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: "csi.example.com", VolumeHandle: "handle-of-" + s.Apps, VolumeAttributes: map[string]string{"dir": s.dir},
	}}
	claim, err := s.Claim(ctx, "data", source, mode)
	if err != nil {
		return corev1.Volume{}, err
	}
	s.placeholders.set("VOLUME", claim.Spec.VolumeName)
	return testenv.ClaimVolume("data", claim.Name), nil
}

// alter changes a resource as the case wants, before it is created.
func (s *caseRun) alter(wanted metav1.Object) error {
	if s.testCase.Transfer == nil {
		return nil
	}
	patch, err := json.Marshal(s.expand(s.testCase.Transfer))
	if err != nil {
		return fmt.Errorf("write change of the resource: %w", err)
	}
	if err := json.Unmarshal(patch, wanted); err != nil {
		return fmt.Errorf("change the resource: %w", err)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
