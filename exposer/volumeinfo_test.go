package exposer

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/objects"
)

func storageClass(mode storagev1.VolumeBindingMode, parameters map[string]string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, VolumeBindingMode: &mode, Parameters: parameters}
}

func sourceClaim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	claim := boundClaim()
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("3Gi")}
	for _, alter := range change {
		alter(claim)
	}
	return claim
}

// ofSnapshot is the source of an upload whose claim is sourceClaim.
func ofSnapshot() objects.Source {
	return objects.Source{Snapshot: &objects.SnapshotSource{Namespace: "app", Snapshot: "snap", Claim: "claim", StorageClass: "fast"}}
}

func TestVolumeInfoOfASnapshot(t *testing.T) {
	immediate, waits := storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer
	zone := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "zone"}}}}}
	inZone := csiVolume(corev1.PersistentVolumeFilesystem)
	inZone.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: zone}
	attachedTo := func(node string) *storagev1.VolumeAttachment {
		source := storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv1")}
		return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: node, Source: source}}
	}
	selected := func(node string) *corev1.PersistentVolumeClaim {
		claim := sourceClaim()
		claim.Annotations = map[string]string{objects.AnnotationSelectedNode: node}
		return claim
	}
	w1 := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: map[string]string{corev1.LabelOSStable: "windows"}}}
	l1 := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "l1", Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
	size := resource.MustParse("3Gi")
	for name, test := range map[string]struct {
		objects  []runtime.Object
		settings objects.Settings
		windows  bool // agents run on Windows nodes
		block    bool // for a block mover
		want     objects.VolumeInfo
		reads    []string // after the class and the claim
	}{
		"for a block mover is of a device": {
			objects: []runtime.Object{storageClass(immediate, map[string]string{parameterFSType: "ntfs"}), sourceClaim(), inZone}, block: true,
			want: objects.VolumeInfo{OS: corev1.Linux, StorageClass: "fast", Size: size, Block: true, Handle: "h"}, reads: []string{"get persistentvolumes"},
		},
		"of a volume that every node can reach takes two reads": {
			objects: []runtime.Object{storageClass(immediate, nil), sourceClaim()},
			want:    objects.VolumeInfo{OS: corev1.Linux, StorageClass: "fast", Size: size},
		},
		"of a claim that has lost its volume takes two reads": {
			objects: []runtime.Object{storageClass(immediate, nil), sourceClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" })},
			want:    objects.VolumeInfo{OS: corev1.Linux, StorageClass: "fast", Size: size},
		},
		"of a volume in a zone takes three": {
			objects: []runtime.Object{storageClass(waits, nil), sourceClaim(), inZone},
			want:    objects.VolumeInfo{OS: corev1.Linux, StorageClass: "fast", Size: size, Topology: zone}, reads: []string{"get persistentvolumes"},
		},
		"of a vSphere volume that is provisioned fast leaves out where it is attached": {
			objects:  []runtime.Object{storageClass(immediate, nil), sourceClaim(), attachedTo("n7")},
			settings: objects.Settings{BackupClaims: map[string]objects.BackupClaim{"fast": {Annotations: map[string]string{annotationFastVSphere: "true"}}}},
			want:     objects.VolumeInfo{OS: corev1.Linux, StorageClass: "fast", Size: size, Excluded: []string{"n7"}}, reads: []string{"list volumeattachments"},
		},
		"of NTFS is for Windows": {
			objects: []runtime.Object{storageClass(immediate, map[string]string{parameterFSType: "ntfs"}), sourceClaim()}, windows: true,
			want: objects.VolumeInfo{OS: corev1.Windows, StorageClass: "fast", Size: size}, reads: []string{"list volumeattachments"},
		},
		"of NTFS is for Windows even without agents there, so that the error names it": {
			objects: []runtime.Object{storageClass(immediate, map[string]string{parameterFSType: "ntfs"}), sourceClaim()},
			want:    objects.VolumeInfo{OS: corev1.Windows, StorageClass: "fast", Size: size},
		},
		"of a claim that a Windows node uses is for Windows": {
			objects: []runtime.Object{storageClass(immediate, nil), selected("w1"), w1}, windows: true,
			want: objects.VolumeInfo{OS: corev1.Windows, StorageClass: "fast", Size: size}, reads: []string{"list volumeattachments", "get nodes"},
		},
		"of a volume that is attached to a Windows node is for Windows, whatever node was selected once": {
			objects: []runtime.Object{storageClass(immediate, nil), selected("l1"), w1, l1, attachedTo("w1")}, windows: true,
			want: objects.VolumeInfo{OS: corev1.Windows, StorageClass: "fast", Size: size}, reads: []string{"list volumeattachments", "get nodes"},
		},
		"of a device is for Linux": {
			objects: []runtime.Object{
				storageClass(immediate, map[string]string{parameterFSType: "ntfs"}),
				sourceClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }),
			}, windows: true,
			want: objects.VolumeInfo{OS: corev1.Linux, StorageClass: "fast", Size: size, Block: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(test.objects...)
			e := exposed(client, test.settings)
			if test.windows {
				e.Templates[corev1.Windows] = objects.Template{}
			}
			info, err := e.volumeInfo(t.Context(), objects.MoverSpec{Source: ofSnapshot(), BlockMover: test.block})
			require.NoError(t, err)
			require.Equal(t, test.want, info)
			require.Equal(t, append([]string{"get storageclasses", "get persistentvolumeclaims"}, test.reads...), requests(client))
		})
	}
}

func TestACachedStorageClassIsNotFetched(t *testing.T) {
	client := fake.NewClientset(sourceClaim())
	e := exposed(client, objects.Settings{})
	e.StorageClass = func(string) *storagev1.StorageClass { return storageClass(storagev1.VolumeBindingImmediate, nil) }
	_, err := e.volumeInfo(t.Context(), objects.MoverSpec{Source: ofSnapshot()})
	require.NoError(t, err)
	require.Equal(t, []string{"get persistentvolumeclaims"}, requests(client))
}

func TestVolumeInfoOfATarget(t *testing.T) {
	free := sourceClaim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Spec.StorageClassName, c.Spec.VolumeMode = "", new("fast"), new(corev1.PersistentVolumeBlock)
		c.Annotations = map[string]string{objects.AnnotationSelectedNode: "n3"}
	})
	node := func(ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	for name, test := range map[string]struct {
		settings objects.Settings
		node     *corev1.Node
		want     string
	}{
		"its consumer was to run there":   {node: node(corev1.ConditionTrue), want: "n3"},
		"it does not wait for a consumer": {settings: objects.Settings{IgnoreDelayBinding: true}, node: node(corev1.ConditionTrue)},
		"the node is not ready":           {node: node(corev1.ConditionUnknown)},
		"the node was deleted":            {},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(free)
			if test.node != nil {
				require.NoError(t, client.Tracker().Add(test.node))
			}
			info, err := exposed(client, test.settings).volumeInfo(t.Context(), download())
			require.NoError(t, err)
			require.Equal(t, objects.VolumeInfo{OS: corev1.Linux, Block: true, StorageClass: "fast", SelectedNode: test.want, Target: free}, info)
		})
	}
	client := fake.NewClientset(free)
	client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden("by policy") })
	_, err := exposed(client, objects.Settings{}).volumeInfo(t.Context(), download())
	require.ErrorContains(t, err, "get node n3: ")
}

func TestASourceWithoutItsVolume(t *testing.T) {
	immediate, late := storageClass(storagev1.VolumeBindingImmediate, nil), storageClass(storagev1.VolumeBindingWaitForFirstConsumer, nil)
	unbound := sourceClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" })
	inline := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n7"}}
	attached := objects.Settings{BackupClaims: map[string]objects.BackupClaim{"fast": {Annotations: map[string]string{annotationFastVSphere: "true"}}}}
	for name, test := range map[string]struct {
		source   objects.Source
		objects  []runtime.Object
		settings objects.Settings
		answer   error // to each request
		message  string
		waits    bool // it is no terminal error
	}{
		"without a storage class":             {source: ofSnapshot(), objects: []runtime.Object{sourceClaim()}, message: "get storage class fast"},
		"without its claim":                   {source: ofSnapshot(), objects: []runtime.Object{immediate}, message: "get claim app/claim"},
		"without a target":                    {source: download().Source, message: "get claim app/claim"},
		"to a claim that is bound":            {source: download().Source, objects: []runtime.Object{boundClaim()}, message: "target claim app/claim is already bound to volume pv1"},
		"of nothing":                          {message: "the resource names no volume"},
		"of an API server that is overloaded": {source: ofSnapshot(), answer: apierrors.NewTooManyRequests("slow down", 1), message: "slow down", waits: true},
		"to a target that cannot be read":     {source: download().Source, answer: context.DeadlineExceeded, message: "deadline", waits: true},
		"of a claim without a volume, for the nodes that can reach it": {
			source: ofSnapshot(), objects: []runtime.Object{late, unbound}, message: "source claim app/claim has no volume", waits: true,
		},
		"of a claim without a volume, for the nodes to which it is attached": {
			source: ofSnapshot(), objects: []runtime.Object{immediate, unbound, inline}, settings: attached, message: "source claim app/claim has no volume", waits: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(test.objects...)
			client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return test.answer != nil, nil, test.answer })
			_, err := exposed(client, test.settings).volumeInfo(t.Context(), objects.MoverSpec{Source: test.source})
			require.ErrorContains(t, err, test.message)
			require.Equal(t, !test.waits, errors.As(err, new(*TerminalError)))
		})
	}
}

func TestAMoverThatToleratesEveryTaintPrefersReadyNodes(t *testing.T) {
	up, down := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "up"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "down"}}
	up.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for key, want := range map[string][]string{"": {"down"}, "storage": nil} {
		client := fake.NewClientset(freeTarget(), up, down)
		e := exposed(client, objects.Settings{})
		e.Templates[corev1.Linux] = objects.Template{AgentTolerations: []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}}
		_, err := e.Ensure(t.Context(), download())
		require.NoError(t, err)
		_, err = e.Ensure(t.Context(), download())
		require.NoError(t, err)
		require.Equal(t, len(want), strings.Count(strings.Join(requests(client), ","), "list nodes"), "one list serves all")
		pod, err := client.CoreV1().Pods("velero").Get(t.Context(), "b1", metav1.GetOptions{})
		require.NoError(t, err)
		nodes := pod.Spec.Affinity.NodeAffinity
		require.Empty(t, nodes.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields, "no other node may reach the volume")
		var avoided []string
		for _, preferred := range nodes.PreferredDuringSchedulingIgnoredDuringExecution {
			avoided = append(avoided, preferred.Preference.MatchFields[0].Values...)
		}
		require.Equal(t, want, avoided)
	}
}

func TestASourcePodThatNoCacheHasIsFetched(t *testing.T) {
	source := podWith(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	source.Spec.NodeName = "n1"
	client := fake.NewClientset(source)
	e := exposed(client, objects.Settings{})
	e.Source, e.Paths.OS = func(string) *corev1.Pod { return nil }, corev1.Windows
	info, err := e.volumeInfo(t.Context(), podVolumeBackup())
	require.NoError(t, err)
	require.Equal(t, []any{"n1", corev1.Windows}, []any{info.Node, info.OS})
	require.Equal(t, []string{"get pods"}, requests(client))
	spec := podVolumeBackup()
	spec.Source.PodVolume.Pod.UID = "of-an-earlier-pod"
	_, err = e.volumeInfo(t.Context(), spec)
	require.ErrorIs(t, err, errSourceGone)
	_, err = exposed(fake.NewClientset(), objects.Settings{}).volumeInfo(t.Context(), spec)
	require.ErrorIs(t, err, errSourceGone)
}
