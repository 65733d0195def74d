package integration

import (
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// volumes are those of an environment, with a CSI driver and classes of its own.
type volumes struct {
	*env
	driver    *csi.Driver
	class     string // of storage
	snapshots string // class of snapshots
}

// volumes starts the driver.
func (s *env) volumes(options csi.Options, change ...func(*storagev1.StorageClass)) *volumes {
	s.Helper()
	options.Driver, options.Dir = s.Namespace+".example.com", s.TempDir()
	driver, err := csi.Start(s.soon(), plane.Admin(), options)
	require.NoError(s, err)
	s.Cleanup(driver.Stop)
	v := &volumes{env: s, driver: driver, class: "disk-" + s.Namespace, snapshots: "snap-" + s.Namespace}
	require.NoError(s, s.StorageClass(s.soon(), v.class, driver.Name(), change...))
	require.NoError(s, s.SnapshotClass(s.soon(), v.snapshots, driver.Name()))
	return v
}

// claim makes a claim that is bound, which needs a pod if its class waits for one.
func (v *volumes) claim(name string) *corev1.PersistentVolumeClaim {
	v.Helper()
	_, err := v.CSIClaim(v.soon(), name, v.class)
	require.NoError(v, err)
	claim, err := v.WaitClaim(v.soon(), v.Apps, name, testenv.Bound)
	require.NoError(v, err)
	v.fill(claim)
	return claim
}

// snapshot takes one of a claim, and returns it when it has a handle, as Velero's server waits for.
func (v *volumes) snapshot(claim *corev1.PersistentVolumeClaim) (snapshot *snapshotv1.VolumeSnapshot, handle string) {
	v.Helper()
	created, err := v.Snapshot(v.soon(), v.backup, claim, v.snapshots)
	require.NoError(v, err)
	created, err = v.WaitSnapshot(v.soon(), created.Namespace, created.Name, func(s *snapshotv1.VolumeSnapshot) bool {
		return s.Status != nil && s.Status.BoundVolumeSnapshotContentName != nil
	})
	require.NoError(v, err)
	content, err := v.WaitContent(v.soon(), *created.Status.BoundVolumeSnapshotContentName, func(c *snapshotv1.VolumeSnapshotContent) bool {
		return c.Status != nil && c.Status.SnapshotHandle != nil
	})
	require.NoError(v, err)
	return created, *content.Status.SnapshotHandle
}

// upload creates the DataUpload of a snapshot.
func (v *volumes) upload(claim *corev1.PersistentVolumeClaim, snapshot string, change ...func(*velerov2alpha1.DataUpload)) string {
	v.Helper()
	created, err := v.DataUpload(v.soon(), v.backup, claim, velerov2alpha1.CSISnapshotSpec{
		VolumeSnapshot: snapshot, SnapshotClass: v.snapshots, Driver: v.driver.Name(),
	}, change...)
	require.NoError(v, err)
	return created.Name
}

// uploads makes a claim, its snapshot and its DataUpload.
func (v *volumes) uploads(claim string) (name, handle string) {
	v.Helper()
	source := v.claim(claim)
	snapshot, handle := v.snapshot(source)
	return v.upload(source, snapshot.Name), handle
}

// reaches waits until a transfer of data is in a phase.
func (v *volumes) reaches(kind testenv.Kind, name string, phase testenv.Phase) *testenv.Transfer {
	v.Helper()
	seen, err := v.Transfers(kind).Wait(v.soon(), name, testenv.In(phase))
	require.NoError(v, err)
	return seen
}

// progresses waits for one step after the other, each of which may take its time, until nobody has anything left to do.
func (v *volumes) progresses(kind testenv.Kind, name string) (settled *testenv.Transfer) {
	v.Helper()
	after := func(phases ...testenv.Phase) func(*testenv.Transfer) bool {
		return func(seen *testenv.Transfer) bool { return !slices.Contains(phases, seen.Status.Phase) }
	}
	moved := func(seen *testenv.Transfer) bool {
		return testenv.Ended(seen) || seen.Annotations[api.AnnotationMoved] != ""
	}
	for _, come := range []func(*testenv.Transfer) bool{
		after(""), after("", testenv.Accepted), after("", testenv.Accepted, testenv.Prepared), moved, testenv.Ended, testenv.Settled,
	} {
		var err error
		settled, err = v.Transfers(kind).Wait(v.soon(), name, come)
		require.NoError(v, err)
	}
	return settled
}

// settles waits for the end of a transfer of data, and until nothing is left of what was made for it.
func (v *volumes) settles(kind testenv.Kind, name string, phase testenv.Phase) *testenv.Transfer {
	v.Helper()
	ended := v.progresses(kind, name)
	require.Equal(v, phase, ended.Status.Phase, ended.Status.Message)
	if phase == testenv.Completed {
		v.movedAll(ended)
	}
	require.NotNil(v, ended.Status.CompletionTimestamp)
	require.NotContains(v, ended.Labels, api.LabelExposing)
	require.NoError(v, v.WaitPodGone(v.soon(), v.Namespace, name))
	require.NoError(v, v.WaitClaimGone(v.soon(), v.Namespace, name))
	return ended
}

// uploaded is settles for a DataUpload whose snapshot was there: it is deleted, once.
func (v *volumes) uploaded(name, handle string, phase testenv.Phase) *testenv.Transfer {
	v.Helper()
	ended := v.settles(testenv.DataUpload, name, phase)
	require.NoError(v, v.WaitSnapshotGone(v.soon(), v.Namespace, name))
	require.NoError(v, v.WaitContentGone(v.soon(), name))
	require.Equal(v, 1, v.driver.Deletions(handle), "of the snapshot by the driver")
	require.NotContains(v, v.driver.Handles(), handle)
	return ended
}

// noSnapshots wants nothing of snapshots to be left in the namespaces of the environment.
func (v *volumes) noSnapshots() {
	v.Helper()
	for _, namespace := range []string{v.Namespace, v.Apps} {
		left, err := v.Snapshots.SnapshotV1().VolumeSnapshots(namespace).List(v.soon(), metav1.ListOptions{})
		require.NoError(v, err)
		require.Empty(v, left.Items)
	}
	contents, err := v.Snapshots.SnapshotV1().VolumeSnapshotContents().List(v.soon(), metav1.ListOptions{})
	require.NoError(v, err)
	for _, content := range contents.Items {
		require.NotEqual(v, v.driver.Name(), content.Spec.Driver, "content %s is left", content.Name)
	}
}

// counted are those of requests that count: not what agents watch, the Lease and Events.
func counted(records cluster.Records) (writes, reads []string) {
	for _, record := range records {
		switch {
		case record.Resource == "events" || record.Resource == "leases" || record.Verb == "watch":
		case record.Write():
			writes = append(writes, record.String())
		default:
			reads = append(reads, record.String())
		}
	}
	return writes, reads
}

// noConflicts wants no request of an agent to have been refused with 409, but for the Lease, for which agents compete.
func (s *env) noConflicts() {
	s.Helper()
	require.Empty(s, s.requests(cluster.Query{}).Where(func(r cluster.Record) bool { return r.Code == 409 && r.Resource != "leases" }))
}
