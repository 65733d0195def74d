package integration

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// zoned puts each node into a zone of its own.
func zoned(options *node.Options) {
	options.Labels = maps.Clone(options.Labels)
	options.Labels[corev1.LabelTopologyZone] = "zone-of-" + options.Name
}

// claimOn makes a claim of a class that waits for its consumer, which is a pod on a node.
func (s *env) claimOn(name string, n *node.Node) *corev1.PersistentVolumeClaim {
	s.uses("user-of-"+name, n, name)
	return s.claim(name)
}

// uses makes a pod for a node that mounts a claim.
func (s *env) uses(name string, n *node.Node, claim string) {
	s.pod(s.Apps, metav1.ObjectMeta{Name: name}, func(pod *corev1.PodSpec) {
		pod.NodeSelector, pod.Volumes = map[string]string{corev1.LabelHostname: n.Name()}, []corev1.Volume{testenv.ClaimVolume("data", claim)}
	})
}

func TestAnUploadRunsWhereItsVolumeCanBeReached(t *testing.T) {
	f := newFleet(t, 50*time.Millisecond, 3, zoned)
	v := f.volumes(csi.Options{Topology: corev1.LabelTopologyZone}, testenv.WhenUsed)
	for _, n := range f.Nodes {
		f.start(on(n))
	}
	for _, n := range f.Nodes[1:] {
		source := v.claimOn("data-of-"+n.Name(), n)
		snapshot, handle := v.snapshot(source)
		ended := v.uploaded(v.upload(source, snapshot.Name), handle, testenv.Completed)
		require.Equal(t, n.Name(), ended.Status.Node)
	}
}

func TestADownloadRunsWhereItsConsumerWill(t *testing.T) {
	f := newFleet(t, 50*time.Millisecond, 3, zoned)
	v := f.volumes(csi.Options{Topology: corev1.LabelTopologyZone}, testenv.WhenUsed)
	f.configure(only(f.Nodes[0])) // of which the consumer knows nothing
	for _, n := range f.Nodes {
		f.start(on(n))
	}
	name := v.download(v.target())
	f.uses("user", f.Nodes[2], "restored")
	v.delivered(name)
	_, err := f.WaitPod(f.soon(), f.Apps, "user", testenv.Ready)
	require.NoError(t, err)
}

func TestAnUploadRunsWhereTheConfigurationWantsIt(t *testing.T) {
	f := newFleet(t, 50*time.Millisecond, 3)
	v := f.volumes(csi.Options{})
	element := func(class string, n *node.Node) string {
		return fmt.Sprintf(`{"storageClass":%q,"nodeSelector":{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"In","values":[%q]}]}}`, class, n.Name())
	}
	tests := []struct {
		config string
		nodes  []string
	}{
		{config: element("", f.Nodes[0]) + "," + element(v.storageClass, f.Nodes[2]), nodes: []string{f.Nodes[2].Name()}},
		{config: element("", f.Nodes[0]) + "," + element("another", f.Nodes[2]), nodes: []string{f.Nodes[0].Name()}},
		{config: element(v.storageClass, f.Nodes[0]) + "," + element(v.storageClass, f.Nodes[1]), nodes: []string{f.Nodes[0].Name(), f.Nodes[1].Name()}},
	}
	for i, test := range tests {
		f.configure(`{"loadAffinity":[` + test.config + `]}`)
		var agents []*agentRun
		for _, n := range f.Nodes {
			agents = append(agents, f.start(on(n)))
		}
		name, handle := v.uploads(fmt.Sprintf("data-%d", i))
		require.Contains(t, test.nodes, v.uploaded(name, handle, testenv.Completed).Status.Node, test.config)
		for _, agent := range agents {
			agent.stop()
		}
	}
}

// vSphere cannot provision fast from a snapshot for a node to which the volume is attached.
func TestAnUploadStaysOffTheNodeOfAVolumeThatIsProvisionedFast(t *testing.T) {
	f := newFleet(t, 50*time.Millisecond, 2)
	v := f.volumes(csi.Options{})
	f.configure(`{"backupPVC":{"` + v.storageClass + `":{"annotations":{"csi.vsphere.volume/fast-provisioning":"true"}}}}`)
	for _, n := range f.Nodes {
		f.start(on(n))
	}
	for i, n := range f.Nodes {
		source := v.claim(fmt.Sprintf("data-%d", i))
		_, err := f.Kube.StorageV1().VolumeAttachments().Create(f.soon(), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: source.Spec.VolumeName},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: v.Driver.Name(), NodeName: n.Name(),
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &source.Spec.VolumeName},
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		snapshot, handle := v.snapshot(source)
		ended := v.uploaded(v.upload(source, snapshot.Name), handle, testenv.Completed)
		require.Equal(t, f.Nodes[1-i].Name(), ended.Status.Node)
	}
}

func TestMoversOfDataTolerateWhatAgentsTolerate(t *testing.T) {
	f := newFleet(t, 50*time.Millisecond, 1)
	v := f.volumes(csi.Options{})
	source := v.claim("data")
	snapshot, handle := v.snapshot(source)
	taint := `{"spec":{"taints":[{"key":"backup-only","effect":"NoSchedule"}]}}`
	_, err := f.Kube.CoreV1().Nodes().Patch(f.soon(), f.node.Name(), types.StrategicMergePatchType, []byte(taint), metav1.PatchOptions{})
	require.NoError(t, err)
	tolerates := `{"spec":{"template":{"spec":{"tolerations":[{"key":"backup-only","operator":"Exists","effect":"NoSchedule"}]}}}}`
	_, err = f.Kube.AppsV1().DaemonSets(f.Namespace).Patch(f.soon(), "node-agent", types.StrategicMergePatchType, []byte(tolerates), metav1.PatchOptions{})
	require.NoError(t, err)
	f.start()
	v.uploaded(v.upload(source, snapshot.Name), handle, testenv.Completed)
}

func TestMoversOfDataLookAsTheConfigurationSays(t *testing.T) {
	v := newEnv(t, time.Minute).volumes(csi.Options{})
	other := v.storageClass + "-other"
	require.NoError(t, v.StorageClass(v.soon(), other, v.Driver.Name()))
	v.configure(`{
		"podLabels":{"team":"storage","lateen.dev/mover":"no"},"podAnnotations":{"note":"hello"},
		"podResources":{"cpuRequest":"100m","memoryLimit":"1Gi"},
		"backupPVC":{"` + v.storageClass + `":{"storageClass":"` + other + `","readOnly":true,"spcNoRelabeling":true,"annotations":{"fast":"yes"}}}
	}`)
	v.start()
	name, handle := v.uploads("data")
	v.reaches(testenv.DataUpload, name, testenv.InProgress)
	pod := v.moverIs(name, func(*corev1.Pod) bool { return true })
	require.Equal(t, "storage", pod.Labels["team"])
	require.Equal(t, "true", pod.Labels[api.LabelMover])
	require.Equal(t, name, pod.Labels["velero.io/data-upload"])
	require.Equal(t, "hello", pod.Annotations["note"])
	require.Equal(t, "false", pod.Annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"])
	require.Len(t, pod.Spec.TopologySpreadConstraints, 1)
	require.Equal(t, "100m", pod.Spec.Containers[0].Resources.Requests.Cpu().String())
	require.Equal(t, "1Gi", pod.Spec.Containers[0].Resources.Limits.Memory().String())
	require.Equal(t, "spc_t", pod.Spec.SecurityContext.SELinuxOptions.Type)
	claim, err := v.WaitClaim(v.soon(), v.Namespace, name, testenv.Bound)
	require.NoError(t, err)
	require.Equal(t, other, *claim.Spec.StorageClassName)
	require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}, claim.Spec.AccessModes)
	require.Equal(t, "yes", claim.Annotations["fast"])
	require.NoError(t, v.Transfers(testenv.DataUpload).Cancel(v.soon(), name))
	v.uploaded(name, handle, testenv.Canceled)
}

// windows has the second node of a fleet run it.
func windows(options *node.Options) {
	if strings.HasSuffix(options.Name, "-b") {
		options.Labels = maps.Clone(options.Labels)
		options.Labels[corev1.LabelOSStable] = string(corev1.Windows)
	}
}

func TestAVolumeOfWindowsIsMovedThere(t *testing.T) {
	f := newFleet(t, 50*time.Millisecond, 2, windows)
	v := f.volumes(csi.Options{}, func(class *storagev1.StorageClass) {
		class.Parameters = map[string]string{"csi.storage.k8s.io/fstype": "ntfs"}
	})
	for _, n := range f.Nodes {
		f.start(on(n))
	}
	name, handle := v.uploads("data")
	mover := f.moverIs(name, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
	require.Equal(t, f.Nodes[1].Name(), mover.Spec.NodeName)
	require.Equal(t, corev1.Windows, mover.Spec.OS.Name)
	require.Equal(t, "windows", v.uploaded(name, handle, testenv.Completed).Status.NodeOS)
}
