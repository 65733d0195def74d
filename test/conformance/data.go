package conformance

import (
	"context"
	"errors"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// fillPod gives the volume of a pod data of the pod's own.
func (c *caseRun) fillPod(ctx context.Context, pod *corev1.Pod) error {
	dir, err := c.node.VolumeDir(ctx, pod, "data")
	if err != nil {
		return err
	}
	return node.WriteData(dir, node.Data(pod.UID, ""))
}

// fillClaim gives the volume of a claim data of the claim's own.
func (c *caseRun) fillClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	dir, err := c.dirOf(ctx, claim)
	if err != nil {
		return err
	}
	return node.WriteData(dir, node.Data(claim.UID, ""))
}

// dirOf is where the driver has the volume of a claim.
func (c *caseRun) dirOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (string, error) {
	volume, err := c.Kube.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get volume of claim %s: %w", claim.Name, err)
	}
	if volume.Spec.CSI == nil {
		return "", fmt.Errorf("volume %s is of no CSI driver", volume.Name)
	}
	for _, driver := range c.plane.Drivers {
		if driver.Name() == volume.Spec.CSI.Driver {
			return driver.VolumeDir(volume.Spec.CSI.VolumeHandle), nil
		}
	}
	return "", fmt.Errorf("volume %s is of driver %s, which nobody plays", volume.Name, volume.Spec.CSI.Driver)
}

// moved wants every transfer of the case that is Completed to have moved its own data: a backup all of its volume, and a
// restore to where it was asked to, where nothing has changed it since.
func (c *caseRun) moved(ctx context.Context) error {
	if c.testCase.maintains() || c.testCase.Mover.Result != nil { // these movers move nothing
		return nil
	}
	for _, word := range []string{"NAME", "SECOND"} {
		name := c.placeholders.of(word)
		if name == "" {
			continue
		}
		transfer, err := c.transferNow(name)
		if err != nil {
			return err
		}
		if transfer.Status.Phase != testenv.Completed {
			continue
		}
		if err := c.movedBy(ctx, transfer); err != nil {
			return fmt.Errorf("data of $%s: %w", word, err)
		}
	}
	return nil
}

func (c *caseRun) movedBy(ctx context.Context, transfer *testenv.Transfer) error {
	switch c.testCase.Kind {
	case testenv.PodVolumeBackup:
		return c.uploaded(transfer, transfer.Spec.Pod.UID)
	case testenv.DataUpload:
		return c.uploaded(transfer, types.UID(transfer.Labels[velerov1.PVCUIDLabel]))
	case testenv.PodVolumeRestore:
		pod, err := c.Kube.CoreV1().Pods(transfer.Spec.Pod.Namespace).Get(ctx, transfer.Spec.Pod.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get restored pod: %w", err)
		}
		dir, err := c.node.VolumeDir(ctx, pod, transfer.Spec.Volume)
		if err != nil {
			return err
		}
		return restoredTo(dir, transfer)
	default:
		claim, err := c.Kube.CoreV1().PersistentVolumeClaims(transfer.Spec.TargetVolume.Namespace).Get(ctx, transfer.Spec.TargetVolume.PVC, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get target claim: %w", err)
		}
		dir, err := c.dirOf(ctx, claim)
		if err != nil {
			return err
		}
		return restoredTo(dir, transfer)
	}
}

// uploaded wants the mover of a backup to have read the data of something.
func (c *caseRun) uploaded(transfer *testenv.Transfer, of types.UID) error {
	data, ok := c.Movers.Uploaded(transfer.UID)
	if !ok {
		return errors.New("no mover has read a volume")
	}
	if want := node.Data(of, ""); data != want {
		return fmt.Errorf("uploaded %q, want %q", data, want)
	}
	return nil
}

// restoredTo wants a directory to have what a restore has written.
func restoredTo(dir string, transfer *testenv.Transfer) error {
	data, err := node.ReadData(dir)
	if err != nil {
		return err
	}
	if want := node.Data(transfer.UID, transfer.Spec.SnapshotID); data != want {
		return fmt.Errorf("restored %q, want %q", data, want)
	}
	return nil
}

// transferNow is what was last seen of a transfer.
func (c *caseRun) transferNow(name string) (transfer *testenv.Transfer, err error) {
	c.plane.History.lock.Lock()
	defer c.plane.History.lock.Unlock()
	return c.transfer(name)
}
