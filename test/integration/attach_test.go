package integration

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// attaching is an environment with a driver that attaches volumes, and whose attacher or detacher is as the test says.
func attaching(t *testing.T, verb csi.Verb, fault func(ctx context.Context) error) *env {
	t.Helper()
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{Attach: true, Fault: func(ctx context.Context, call csi.Call) error {
		if call.Verb != verb {
			return nil
		}
		return fault(ctx)
	}})
	return v
}

// slowly takes half a second.
func slowly(ctx context.Context) error {
	timer := time.NewTimer(500 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// atFirst fails three times.
func atFirst() func(context.Context) error {
	var calls atomic.Int32
	return func(context.Context) error {
		if calls.Add(1) <= 3 {
			return errors.New("the node has no free slot")
		}
		return nil
	}
}

// nothingAttached waits until the driver has detached all volumes, and deleted those that were made for movers.
func (s *env) nothingAttached() {
	require.NoError(s, testenv.WaitGone(s.soon(), s.Kube.StorageV1().VolumeAttachments(), metav1.ListOptions{}, func(object runtime.Object) bool {
		attachment, ok := object.(*storagev1.VolumeAttachment)
		return ok && attachment.Spec.Attacher == s.Driver.Name()
	}))
	s.onlyTheSource()
}

func TestAnUploadWhoseVolumeIsHardToAttachCompletes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		verb  csi.Verb
		fault func(context.Context) error
	}{
		"attached late":    {csi.Attach, slowly},
		"attached at last": {csi.Attach, atFirst()},
		"detached late":    {csi.Detach, slowly},
		"detached at last": {csi.Detach, atFirst()},
	} {
		t.Run(name, func(t *testing.T) {
			v := attaching(t, test.verb, test.fault)
			v.start()
			upload, handle := v.uploads("data")
			v.uploaded(upload, handle, testenv.Completed)
			v.noSnapshots()
			v.nothingLeft()
			v.nothingAttached()
		})
	}
}

func TestAnUploadWhoseVolumeIsNeverAttachedFailsAndSaysWhy(t *testing.T) {
	v := attaching(t, csi.Attach, func(context.Context) error { return errors.New("the node has no free slot") })
	r := v.start()
	upload, handle := v.uploads("data")
	v.says("FailedAttachVolume", "the node has no free slot")
	r.expire(testenv.DataUpload, upload)
	ended := v.uploaded(upload, handle, testenv.Failed)
	require.Contains(t, ended.Status.Message, "FailedAttachVolume: AttachVolume.Attach failed for volume")
	require.Contains(t, ended.Status.Message, "the node has no free slot")
	v.noSnapshots()
	v.nothingLeft()
	v.nothingAttached()
}

func TestAnUploadIsCanceledWhileItsVolumeIsBeingAttached(t *testing.T) {
	asked := make(chan struct{}, 100)
	v := attaching(t, csi.Attach, func(context.Context) error {
		asked <- struct{}{}
		return errors.New("not yet")
	})
	v.start()
	upload, handle := v.uploads("data")
	<-asked
	require.NoError(t, v.Transfers(testenv.DataUpload).Cancel(v.soon(), upload))
	v.uploaded(upload, handle, testenv.Canceled)
	v.noSnapshots()
	v.nothingLeft()
	v.nothingAttached()
}

func TestADownloadWhoseVolumeIsHardToAttachIsDelivered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		verb  csi.Verb
		fault func(context.Context) error
	}{
		"attached late": {csi.Attach, slowly},
		"detached late": {csi.Detach, slowly},
	} {
		t.Run(name, func(t *testing.T) {
			v := attaching(t, test.verb, test.fault)
			v.start()
			v.delivered(v.download(v.target()))
			require.Len(t, v.Driver.Volumes(), 1)
		})
	}
}

// TestAMoverWaitsForAFreeAttachment: the scheduler counts the volumes of a driver on a node, of all pods, by its CSINode.
func TestAMoverWaitsForAFreeAttachmentOnKubernetes(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{})
	limited := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: v.node.Name()},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: v.Driver.Name(), NodeID: v.node.Name(), Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(1))},
		}}},
	}
	_, err := v.Kube.StorageV1().CSINodes().Create(v.soon(), limited, metav1.CreateOptions{})
	require.NoError(t, err)
	v.configure(`{"loadConcurrency":{"globalConfig":2}}`)
	finish := v.work()
	defer finish()
	v.start()
	first, _ := v.uploads("first")
	v.reaches(testenv.DataUpload, first, testenv.InProgress)
	second, _ := v.uploads("second")
	v.moverIs(second, func(mover *corev1.Pod) bool {
		return slices.ContainsFunc(mover.Status.Conditions, func(condition corev1.PodCondition) bool {
			return condition.Reason == corev1.PodReasonUnschedulable && strings.Contains(condition.Message, "max volume count")
		})
	})
	finish()
	v.settles(testenv.DataUpload, first, testenv.Completed)
	v.settles(testenv.DataUpload, second, testenv.Completed)
}
