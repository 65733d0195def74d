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
func (c *caseRun) prepare(ctx context.Context) error {
	switch c.testCase.Kind {
	case testenv.PodVolumeBackup:
		return c.preparePodVolumeBackup(ctx)
	case testenv.PodVolumeRestore:
		return c.preparePodVolumeRestore(ctx)
	case testenv.DataUpload:
		return c.prepareDataUpload(ctx)
	case repository:
		return c.prepareRepository()
	default:
		return c.prepareDataDownload(ctx)
	}
}

func (c *caseRun) preparePodVolumeBackup(ctx context.Context) error {
	volume, err := c.podVolume(ctx)
	if err != nil {
		return err
	}
	created, err := c.SourcePod(ctx, "app", c.placeholders.of("NODE"), volume)
	if err != nil {
		return err
	}
	pod, err := c.ready(ctx, created.Name, testenv.Ready)
	if err != nil {
		return err
	}
	if err := c.fillPod(ctx, pod); err != nil {
		return err
	}
	backup, err := c.backup(ctx)
	if err != nil {
		return err
	}
	c.create = func(ctx context.Context, alter func(metav1.Object) error) (metav1.Object, error) {
		var unread error
		created, err := c.PodVolumeBackup(ctx, backup, pod, "data", func(wanted *velerov1.PodVolumeBackup) { unread = alter(wanted) })
		return created, firstError(unread, err)
	}
	return nil
}

func (c *caseRun) preparePodVolumeRestore(ctx context.Context) error {
	volume, err := c.podVolume(ctx)
	if err != nil {
		return err
	}
	restore, err := c.restore(ctx)
	if err != nil {
		return err
	}
	created, err := c.RestorePod(ctx, restore, "app", c.placeholders.of("NODE"), volume)
	if err != nil {
		return err
	}
	pod, err := c.ready(ctx, created.Name, testenv.WaitsForRestore)
	if err != nil {
		return err
	}
	c.create = func(ctx context.Context, alter func(metav1.Object) error) (metav1.Object, error) {
		var unread error
		created, err := c.PodVolumeRestore(ctx, restore, pod, "data", "a-snapshot", c.Apps,
			func(wanted *velerov1.PodVolumeRestore) { unread = alter(wanted) })
		return created, firstError(unread, err)
	}
	return nil
}

// backup makes the Backup that owns what is backed up.
func (c *caseRun) backup(ctx context.Context) (*velerov1.Backup, error) {
	created, err := c.Backup(ctx, "nightly")
	if err == nil {
		c.placeholders.set("OWNER", string(created.UID))
	}
	return created, err
}

// restore makes the Restore that owns what is restored.
func (c *caseRun) restore(ctx context.Context) (*velerov1.Restore, error) {
	created, err := c.Restore(ctx, "nightly")
	if err == nil {
		c.placeholders.set("OWNER", string(created.UID))
	}
	return created, err
}

// podVolume is the volume of a pod that is backed up or restored.
func (c *caseRun) podVolume(ctx context.Context) (corev1.Volume, error) {
	if !c.testCase.Volume.Claim {
		return testenv.EmptyDir("data"), nil
	}
	mode := corev1.PersistentVolumeFilesystem
	if c.testCase.Volume.Block {
		mode = corev1.PersistentVolumeBlock
	}
	source := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: "csi.example.com", VolumeHandle: "handle-of-" + c.Apps, VolumeAttributes: map[string]string{"dir": c.dir},
	}}
	claim, err := c.Claim(ctx, "data", source, mode)
	if err != nil {
		return corev1.Volume{}, err
	}
	c.placeholders.set("VOLUME", claim.Spec.VolumeName)
	return testenv.ClaimVolume("data", claim.Name), nil
}

// alter changes a resource as the case wants, before it is created.
func (c *caseRun) alter(wanted metav1.Object) error {
	if c.testCase.Transfer == nil {
		return nil
	}
	patch, err := json.Marshal(c.expand(c.testCase.Transfer))
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
