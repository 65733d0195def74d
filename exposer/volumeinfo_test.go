package exposer

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

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

// reads counts the requests by resource.
func reads(client *fake.Clientset) map[string]int {
	count := map[string]int{}
	for _, action := range client.Actions() {
		count[action.GetResource().Resource]++
	}
	return count
}

func TestVolumeInfoOfASnapshot(t *testing.T) {
	source := objects.Source{Snapshot: &objects.SnapshotSource{Namespace: "app", Snapshot: "snap", Claim: "claim", StorageClass: "fast"}}
	immediate, waits := storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer
	zone := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "zone"}}}}}
	inZone := csiVolume(corev1.PersistentVolumeFilesystem)
	inZone.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: zone}
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{
		NodeName: "n7", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv1")},
	}}
	size := resource.MustParse("3Gi")
	for name, test := range map[string]struct {
		objects  []runtime.Object
		settings objects.Settings
		windows  bool // agents run on Windows nodes
		want     objects.VolumeInfo
		reads    map[string]int
	}{
		"of a volume that every node can reach takes two reads": {
			objects: []runtime.Object{storageClass(immediate, nil), sourceClaim()},
			want:    objects.VolumeInfo{OS: corev1.Linux, StorageClass: "fast", Size: size},
			reads:   map[string]int{"storageclasses": 1, "persistentvolumeclaims": 1},
		},
		"of a volume in a zone takes three": {
			objects: []runtime.Object{storageClass(waits, nil), sourceClaim(), inZone},
			want:    objects.VolumeInfo{OS: corev1.Linux, StorageClass: "fast", Size: size, Topology: zone},
			reads:   map[string]int{"storageclasses": 1, "persistentvolumeclaims": 1, "persistentvolumes": 1},
		},
		"of a vSphere volume that is provisioned fast leaves out where it is attached": {
			objects:  []runtime.Object{storageClass(immediate, nil), sourceClaim(), attachment},
			settings: objects.Settings{BackupClaims: map[string]objects.BackupClaim{"fast": {Annotations: map[string]string{annotationFastVSphere: "true"}}}},
			want:     objects.VolumeInfo{OS: corev1.Linux, StorageClass: "fast", Size: size, Excluded: []string{"n7"}},
			reads:    map[string]int{"storageclasses": 1, "persistentvolumeclaims": 1, "volumeattachments": 1},
		},
		"of NTFS is for Windows": {
			objects: []runtime.Object{storageClass(immediate, map[string]string{parameterFSType: "ntfs"}), sourceClaim()}, windows: true,
			want:  objects.VolumeInfo{OS: corev1.Windows, StorageClass: "fast", Size: size},
			reads: map[string]int{"storageclasses": 1, "persistentvolumeclaims": 1, "volumeattachments": 1},
		},
		"of NTFS is for Windows even without agents there, so that the error names it": {
			objects: []runtime.Object{storageClass(immediate, map[string]string{parameterFSType: "ntfs"}), sourceClaim()},
			want:    objects.VolumeInfo{OS: corev1.Windows, StorageClass: "fast", Size: size},
			reads:   map[string]int{"storageclasses": 1, "persistentvolumeclaims": 1},
		},
		"of a claim that a Windows node uses is for Windows": {
			objects: []runtime.Object{
				storageClass(immediate, nil), sourceClaim(func(c *corev1.PersistentVolumeClaim) { c.Annotations = map[string]string{annotationSelectedNode: "w1"} }),
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: map[string]string{corev1.LabelOSStable: "windows"}}},
			}, windows: true,
			want:  objects.VolumeInfo{OS: corev1.Windows, StorageClass: "fast", Size: size},
			reads: map[string]int{"storageclasses": 1, "persistentvolumeclaims": 1, "volumeattachments": 1, "nodes": 1},
		},
		"of a volume that is attached to a Windows node is for Windows, whatever node was selected once": {
			objects: []runtime.Object{
				storageClass(immediate, nil), sourceClaim(func(c *corev1.PersistentVolumeClaim) { c.Annotations = map[string]string{annotationSelectedNode: "l1"} }),
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: map[string]string{corev1.LabelOSStable: "windows"}}},
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "l1", Labels: map[string]string{corev1.LabelOSStable: "linux"}}},
				&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{
					NodeName: "w1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv1")},
				}},
			}, windows: true,
			want:  objects.VolumeInfo{OS: corev1.Windows, StorageClass: "fast", Size: size},
			reads: map[string]int{"storageclasses": 1, "persistentvolumeclaims": 1, "volumeattachments": 1, "nodes": 1},
		},
		"of a device is for Linux": {
			objects: []runtime.Object{
				storageClass(immediate, map[string]string{parameterFSType: "ntfs"}),
				sourceClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }),
			}, windows: true,
			want:  objects.VolumeInfo{OS: corev1.Linux, StorageClass: "fast", Size: size, Block: true},
			reads: map[string]int{"storageclasses": 1, "persistentvolumeclaims": 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(test.objects...)
			e := exposed(client, test.settings)
			if test.windows {
				e.Templates[corev1.Windows] = objects.Template{}
			}
			facts, err := e.volumeInfo(t.Context(), objects.MoverSpec{Source: source})
			require.NoError(t, err)
			require.Equal(t, test.want, facts)
			require.Equal(t, test.reads, reads(client))
		})
	}
}

func TestACachedStorageClassIsNotFetched(t *testing.T) {
	client := fake.NewClientset(sourceClaim())
	e := exposed(client, objects.Settings{})
	e.StorageClass = func(string) *storagev1.StorageClass { return storageClass(storagev1.VolumeBindingImmediate, nil) }
	source := objects.Source{Snapshot: &objects.SnapshotSource{Namespace: "app", Snapshot: "snap", Claim: "claim", StorageClass: "fast"}}
	_, err := e.volumeInfo(t.Context(), objects.MoverSpec{Source: source})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"persistentvolumeclaims": 1}, reads(client))
}

func TestVolumeInfoOfATarget(t *testing.T) {
	move := objects.MoverSpec{OS: corev1.Linux, Source: objects.Source{Target: &objects.TargetSource{Namespace: "app", Claim: "claim"}}}
	free := sourceClaim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Spec.StorageClassName = "", new("fast")
		c.Annotations = map[string]string{annotationSelectedNode: "n3"}
	})
	e := exposed(fake.NewClientset(free), objects.Settings{})
	facts, err := e.volumeInfo(t.Context(), move)
	require.NoError(t, err)
	require.Equal(t, objects.VolumeInfo{OS: corev1.Linux, StorageClass: "fast", SelectedNode: "n3", Target: free}, facts)

	e = exposed(fake.NewClientset(free), objects.Settings{IgnoreDelayBinding: true})
	facts, err = e.volumeInfo(t.Context(), move)
	require.NoError(t, err)
	require.Empty(t, facts.SelectedNode, "it is restored without waiting for its consumer")
}

func TestAnUnsupportedSourceIsATerminalError(t *testing.T) {
	immediate := storageClass(storagev1.VolumeBindingImmediate, nil)
	snapshot := objects.Source{Snapshot: &objects.SnapshotSource{Namespace: "app", Snapshot: "snap", Claim: "claim", StorageClass: "fast"}}
	target := objects.Source{Target: &objects.TargetSource{Namespace: "app", Claim: "claim"}}
	for name, test := range map[string]struct {
		source  objects.Source
		objects []runtime.Object
		message string
	}{
		"without a storage class":  {snapshot, []runtime.Object{sourceClaim()}, "get storage class fast"},
		"without its claim":        {snapshot, []runtime.Object{immediate}, "get claim app/claim"},
		"without a target":         {target, nil, "get claim app/claim"},
		"to a claim that is bound": {target, []runtime.Object{boundClaim()}, "target claim app/claim is already bound to volume pv1"},
		"of nothing":               {objects.Source{}, nil, "the resource names no volume"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := exposed(fake.NewClientset(test.objects...), objects.Settings{}).volumeInfo(t.Context(), objects.MoverSpec{Source: test.source})
			require.ErrorContains(t, err, test.message)
			terminal := (*TerminalError)(nil)
			require.ErrorAs(t, err, &terminal)
		})
	}
}

func TestASourceClaimWithoutAVolumeIsAwaited(t *testing.T) {
	unbound := sourceClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" })
	inline := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n7"}}
	move := objects.MoverSpec{Source: objects.Source{Snapshot: &objects.SnapshotSource{Namespace: "app", Claim: "claim", StorageClass: "fast"}}}
	fast := map[string]objects.BackupClaim{"fast": {Annotations: map[string]string{annotationFastVSphere: "true"}}}
	for name, test := range map[string]struct {
		mode     storagev1.VolumeBindingMode
		settings objects.Settings
	}{
		"for the nodes that can reach it":       {mode: storagev1.VolumeBindingWaitForFirstConsumer},
		"for the nodes to which it is attached": {mode: storagev1.VolumeBindingImmediate, settings: objects.Settings{BackupClaims: fast}},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(storageClass(test.mode, nil), unbound, inline)
			_, err := exposed(client, test.settings).volumeInfo(t.Context(), move)
			require.EqualError(t, err, "source claim app/claim has no volume")
		})
	}
}
