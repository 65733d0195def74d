package integration

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

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
