package testenv_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// plane is the only control plane of this test binary. TestMain sets it.
var plane *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, &plane)) }

// deadline returns a context that bounds all waits of a test.
var deadline = fixture.Soon

func newWorld(ctx context.Context, t *testing.T, options testenv.Options) *testenv.Env {
	t.Helper()
	w, err := testenv.New(ctx, plane.Admin(), options)
	require.NoError(t, err)
	return w
}

func TestCRDsAreVelerosOwn(t *testing.T) {
	ctx := deadline(t)
	require.NoError(t, testenv.InstallCRDs(ctx, plane.Admin()), "a second time changes nothing")
	w := newWorld(ctx, t, testenv.Options{})
	for _, group := range []string{"velero.io/v1", "velero.io/v2alpha1"} {
		found, err := w.Kube.Discovery().ServerResourcesForGroupVersion(group)
		require.NoError(t, err)
		require.NotEmpty(t, found.APIResources)
	}
	backup, pod := backupAndPod(ctx, t, w)
	created, err := w.PodVolumeBackup(ctx, backup, pod, "data")
	require.NoError(t, err)
	require.NoError(t, w.Transfers(testenv.PodVolumeBackup).Patch(ctx, created.Name, `{"status":{"phase":"Accepted"}}`))
	err = w.Transfers(testenv.PodVolumeBackup).Patch(ctx, created.Name, `{"status":{"phase":"NoSuchPhase"}}`)
	require.True(t, apierrors.IsInvalid(err), "%v", err)
}

func TestNodeAgentRunsOnTheNodeOfTheWorld(t *testing.T) {
	ctx := deadline(t)
	node, other := "node-of-this-installation", "another-node"
	w := newWorld(ctx, t, testenv.Options{Node: node, KubeletRoot: "/some/kubelet"})
	for _, name := range []string{node, other} {
		readyNode(ctx, t, w, name)
	}
	present := func(*corev1.Pod) bool { return true }
	pod, err := w.NodeAgentPod(ctx, node, present)
	require.NoError(t, err)
	require.Equal(t, "velero", pod.Spec.ServiceAccountName)
	require.Equal(t, "/some/kubelet/pods", pod.Spec.Volumes[0].HostPath.Path)

	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_, err = w.NodeAgentPod(short, other, present)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestWorldOfSeveralNodesHasAnAgentOnEachAndPodsOnNoOther(t *testing.T) {
	ctx := deadline(t)
	labels := map[string]string{"world": "of-several"}
	w := newWorld(ctx, t, testenv.Options{NodeLabels: labels})
	for _, name := range []string{"several-1", "several-2", "foreign"} {
		readyNode(ctx, t, w, name)
	}
	for _, name := range []string{"several-1", "several-2"} {
		_, err := w.Kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"labels":{"world":"of-several"}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		_, err = w.NodeAgentPod(ctx, name, func(*corev1.Pod) bool { return true })
		require.NoError(t, err)
	}
	_, err := w.SourcePod(ctx, "anywhere", "", testenv.EmptyDir("data"))
	require.NoError(t, err)
	pod, err := w.WaitPod(ctx, w.Apps, "anywhere", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
	require.NoError(t, err)
	require.Contains(t, pod.Spec.NodeName, "several-")
}

func TestClaimIsBoundAndPodMountsIt(t *testing.T) {
	ctx := deadline(t)
	w := newWorld(ctx, t, testenv.Options{})
	source := func(handle string) corev1.PersistentVolumeSource {
		return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: handle}}
	}
	files, err := w.Claim(ctx, "files", source("h1"), corev1.PersistentVolumeFilesystem)
	require.NoError(t, err)
	require.Equal(t, w.Apps+"-files", files.Spec.VolumeName)
	_, err = w.Claim(ctx, "blocks", source("h2"), corev1.PersistentVolumeBlock)
	require.NoError(t, err)
	local := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/disk"}}
	_, err = w.Claim(ctx, "local", local, corev1.PersistentVolumeFilesystem)
	require.NoError(t, err)

	pod, err := w.SourcePod(ctx, "p1", "n1", testenv.EmptyDir("cache"),
		testenv.ClaimVolume("f", "files"), testenv.ClaimVolume("b", "blocks"), testenv.ClaimVolume("l", "local"))
	require.NoError(t, err)
	require.Equal(t, "n1", pod.Spec.NodeName)
	container := pod.Spec.Containers[0]
	require.Equal(t, []corev1.VolumeDevice{{Name: "b", DevicePath: "/dev/b"}}, container.VolumeDevices)
	require.Equal(t, "/cache", container.VolumeMounts[0].MountPath)

	backup, err := w.Backup(ctx, "nightly")
	require.NoError(t, err)
	created, err := w.PodVolumeBackup(ctx, backup, pod, "f")
	require.NoError(t, err)
	require.Equal(t, "files", created.Annotations["velero.io/pvc-name"])
	require.Equal(t, string(files.UID), created.Labels["velero.io/pvc-uid"])
	_, err = w.PodVolumeBackup(ctx, backup, pod, "nope")
	require.ErrorContains(t, err, "pod p1 has no volume nope")
}

func TestConfigMapHasExactlyWhatWasLastGiven(t *testing.T) {
	ctx := deadline(t)
	w := newWorld(ctx, t, testenv.Options{})
	for _, data := range []map[string]string{{"a": "1", "b": "2"}, {"b": "3"}, {}} {
		require.NoError(t, w.ConfigMap(ctx, "settings", data))
		found, err := w.Kube.CoreV1().ConfigMaps(w.Namespace).Get(ctx, "settings", metav1.GetOptions{})
		require.NoError(t, err)
		require.Len(t, found.Data, len(data))
		for key, value := range data {
			require.Equal(t, value, found.Data[key])
		}
	}
}

// readyNode creates a schedulable node for the duration of the test.
func readyNode(ctx context.Context, t *testing.T, w *testenv.Env, name string) {
	t.Helper()
	nodes := w.Kube.CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, nodes.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}))
	})
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	node.ResourceVersion = "" // The node lifecycle controller writes the node too, but not the test's conditions.
	node.Status.Capacity, node.Status.Allocatable = room, room
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}}
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	require.NoError(t, err)
}
