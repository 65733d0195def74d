package exposer

import (
	"context"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/handover"
	"github.com/lateen-project/lateen/exposer/objects"
)

// storage simulates the API server for snapshots, with a cache that changes only by refresh.
type storage struct {
	client    *fake.Clientset
	unserved  bool
	snapshots map[string]*snapshotv1.VolumeSnapshot
	contents  map[string]*snapshotv1.VolumeSnapshotContent
	deleted   []string // names passed to Deleted
}

func newStorage(objects ...runtime.Object) *storage {
	return &storage{client: fake.NewSimpleClientset(objects...)} //nolint:staticcheck // there is no other in this module
}

// refresh copies the state of the API server into the cache, and returns the storage.
func (s *storage) refresh(t *testing.T) *storage {
	t.Helper()
	s.snapshots, s.contents = map[string]*snapshotv1.VolumeSnapshot{}, map[string]*snapshotv1.VolumeSnapshotContent{}
	snapshots, err := s.client.SnapshotV1().VolumeSnapshots("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range snapshots.Items {
		one := &snapshots.Items[i]
		s.snapshots[one.Namespace+"/"+one.Name] = one
	}
	contents, err := s.client.SnapshotV1().VolumeSnapshotContents().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range contents.Items {
		s.contents[contents.Items[i].Name] = &contents.Items[i]
	}
	s.client.ClearActions()
	return s
}

func (s *storage) Available(context.Context) (bool, error) { return !s.unserved, nil }

func (s *storage) Snapshot(namespace, name string) *snapshotv1.VolumeSnapshot {
	return s.snapshots[namespace+"/"+name]
}
func (s *storage) Content(name string) *snapshotv1.VolumeSnapshotContent { return s.contents[name] }
func (s *storage) Deleted(object metav1.Object)                          { s.deleted = append(s.deleted, object.GetName()) }
func (s *storage) Client() snapshotclient.SnapshotV1Interface            { return s.client.SnapshotV1() }

// requests are the verbs and resources of all requests.
func (s *storage) requests() []string {
	var all []string
	for _, action := range s.client.Actions() {
		name := ""
		if named, ok := action.(interface{ GetName() string }); ok {
			name = named.GetName()
		}
		if create, ok := action.(clienttesting.CreateAction); ok {
			meta, _ := create.GetObject().(metav1.Object)
			name = meta.GetName()
		}
		all = append(all, action.GetVerb()+" "+action.GetResource().Resource+" "+name)
	}
	return all
}

func upload() objects.MoverSpec {
	return objects.MoverSpec{
		Name: "du-1", Namespace: "velero", UID: "du-1-uid", ExposingNode: "n1",
		Source: objects.Source{Snapshot: &objects.SnapshotSource{Namespace: "apps", Snapshot: "snap", Class: "csi", Claim: "data", StorageClass: "fast"}},
	}
}

func original() (*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotContent) {
	size := resource.MustParse("5Gi")
	return &snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "snap", UID: "snap-uid"},
			Status:     &snapshotv1.VolumeSnapshotStatus{ReadyToUse: new(true), BoundVolumeSnapshotContentName: new("snapcontent-snap-uid"), RestoreSize: &size},
		}, &snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: "snapcontent-snap-uid", UID: "content-uid"},
			Spec: snapshotv1.VolumeSnapshotContentSpec{
				VolumeSnapshotRef: corev1.ObjectReference{Namespace: "apps", Name: "snap", UID: "snap-uid"}, DeletionPolicy: "Delete", Driver: "csi.example.com",
			},
			Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("handle-1"), ReadyToUse: new(true)},
		}
}

func TestAHandOverWritesFiveTimesAndReadsNothing(t *testing.T) {
	snapshot, content := original()
	s := newStorage(snapshot, content).refresh(t)
	waits, handed, err := (&Exposer{Snapshots: s}).handOver(t.Context(), upload())
	require.NoError(t, err)
	require.Empty(t, waits)
	size := handed.RestoreSize()
	require.Equal(t, "5Gi", size.String())
	require.Equal(t, []string{
		"create volumesnapshots du-1", "create volumesnapshotcontents du-1", "patch volumesnapshotcontents snapcontent-snap-uid",
		"delete volumesnapshots snap", "delete volumesnapshotcontents snapcontent-snap-uid",
	}, s.requests())
	require.Equal(t, []string{"snap", "snapcontent-snap-uid"}, s.deleted, "or a cache that lags would have them deleted again")
	require.Equal(t, map[string]string{"snap": "snap-uid", "snapcontent-snap-uid": "content-uid"}, deletedUIDs(t, s.client.Actions()))
}

func TestAHandOverContinuesThatOfVelerosAgent(t *testing.T) {
	snapshot, content := original()
	backup := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "du-1", UID: "backup-uid"},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: new("du-1")}},
	}
	theirs := content.DeepCopy()
	theirs.Name, theirs.UID, theirs.Spec.Source.SnapshotHandle = "du-1", "theirs-uid", new("handle-1")
	theirs.Spec.VolumeSnapshotRef = corev1.ObjectReference{Namespace: "velero", Name: "du-1", UID: "backup-uid"}
	s := newStorage(snapshot, content, backup, theirs).refresh(t)
	delete(s.snapshots, "velero/du-1") // its watch lags
	waits, _, err := (&Exposer{Snapshots: s}).handOver(t.Context(), upload())
	require.NoError(t, err)
	require.Empty(t, waits)
	require.Equal(t, []string{
		"get volumesnapshots du-1", "patch volumesnapshots du-1", "patch volumesnapshotcontents du-1", "patch volumesnapshotcontents snapcontent-snap-uid",
		"delete volumesnapshots snap", "delete volumesnapshotcontents snapcontent-snap-uid",
	}, s.requests())
	theirs.Labels = objects.OwnerLabels("du-1-uid", "n1")
	theirs.Spec.DeletionPolicy, theirs.Finalizers = "Delete", []string{"snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"}
	theirs.Status = nil
	s = newStorage(theirs).refresh(t)
	waits, err = (&Exposer{Snapshots: s}).CleanUpSnapshots(t.Context(), upload(), false)
	require.NoError(t, err)
	require.Equal(t, "VolumeSnapshotContent du-1 is being deleted by CSI driver csi.example.com; see kubectl describe volumesnapshotcontent du-1", waits)
	require.Equal(t, []string{
		"patch volumesnapshotcontents du-1", "get volumesnapshots du-1", "get volumesnapshots snap", "patch volumesnapshotcontents du-1",
		"delete volumesnapshotcontents du-1",
	}, s.requests(), "handle and mark")
	require.Equal(t, map[string]string{"du-1": "theirs-uid"}, deletedUIDs(t, s.client.Actions()))
	theirs.Spec.DeletionPolicy = "Retain"
	s = newStorage(theirs).refresh(t)
	require.NoError(t, (&Exposer{Snapshots: s}).RemoveOrphan(t.Context(), "velero", theirs))
	kept, err := s.client.SnapshotV1().VolumeSnapshotContents().Get(t.Context(), "du-1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, kept.Labels, "no later sweep finds it")
}

func TestAHandOverThatCannotSucceedIsATerminalError(t *testing.T) {
	for name, s := range map[string]*storage{"without its original": newStorage(), "without snapshots": {unserved: true}} {
		_, _, err := (&Exposer{Snapshots: s}).handOver(t.Context(), upload())
		require.ErrorAs(t, err, new(*TerminalError), name)
	}
	_, err := (&Exposer{Snapshots: &storage{unserved: true}}).CleanUpSnapshots(t.Context(), upload(), false)
	require.NoError(t, err, "without snapshots there is nothing to delete")
	require.Equal(t, "run step CreateSnapshot of snapshot apps/snap for velero/du-1", (&Exposer{Snapshots: newStorage()}).runHandover(upload()).describe(handover.CreateSnapshot))
}

func TestACleanUpAfterItsOwnHandOverIsConfirmedByOneRead(t *testing.T) {
	for name, test := range map[string]struct {
		handedOver bool
		want       []string
	}{
		"by this process":    {true, []string{"get volumesnapshots du-1"}},
		"by another process": {false, []string{"get volumesnapshots du-1", "get volumesnapshots snap"}},
	} {
		s := newStorage().refresh(t)
		waits, err := (&Exposer{Snapshots: s}).CleanUpSnapshots(t.Context(), upload(), test.handedOver)
		require.NoError(t, err, name)
		require.Empty(t, waits, name)
		require.Equal(t, test.want, s.requests(), name)
	}
}

func TestACleanUpReadsTheSourceFromABackupThatNoCacheHas(t *testing.T) {
	snapshot, content := original()
	backup := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{
		Namespace: "velero", Name: "du-1", UID: "backup-uid", Labels: objects.OwnerLabels("du-1-uid", "n1"),
		Annotations: map[string]string{api.AnnotationSourceSnapshot: "apps/snap"},
	}}
	s := newStorage(snapshot, content, backup)
	require.NoError(t, (&Exposer{Snapshots: s}).RemoveOrphan(t.Context(), "velero", backup))
	require.Equal(t, []string{"get volumesnapshots du-1", "get volumesnapshots snap", "get volumesnapshotcontents du-1", "get volumesnapshotcontents snapcontent-snap-uid", "delete volumesnapshots snap"}, s.requests())
	require.Equal(t, map[string]string{"snap": "snap-uid"}, deletedUIDs(t, s.client.Actions()))
	s = newStorage(snapshot, content, backup).refresh(t)
	require.NoError(t, (&Exposer{Snapshots: s}).RemoveOrphan(t.Context(), "velero", backup))
	require.Equal(t, []string{"get volumesnapshotcontents du-1", "delete volumesnapshots snap"}, s.requests())
	backup.Annotations = nil
	s = newStorage(snapshot, content, backup)
	require.NoError(t, (&Exposer{Snapshots: s}).RemoveOrphan(t.Context(), "velero", backup))
	require.Equal(t, []string{"get volumesnapshots du-1", "get volumesnapshotcontents du-1", "delete volumesnapshots du-1"}, s.requests())
	s = newStorage(snapshot, content)
	_, err := (&Exposer{Snapshots: s}).CleanUpSnapshots(t.Context(), upload(), false)
	require.NoError(t, err)
	require.Contains(t, s.requests(), "get volumesnapshotcontents du-1", "no backup is left, but its content may be")
}

// deletedUIDs are the UID preconditions of all deletes, by name.
func deletedUIDs(t *testing.T, actions []clienttesting.Action) map[string]string {
	t.Helper()
	uids := map[string]string{}
	for _, action := range actions {
		deletes, ok := action.(clienttesting.DeleteActionImpl)
		if !ok {
			continue
		}
		require.NotNil(t, deletes.DeleteOptions.Preconditions, "delete of %s", deletes.Name)
		require.NotNil(t, deletes.DeleteOptions.Preconditions.UID, "delete of %s", deletes.Name)
		uids[deletes.Name] = string(*deletes.DeleteOptions.Preconditions.UID)
	}
	return uids
}

func TestABlockMoverNeedsTheHandleOfItsVolume(t *testing.T) {
	spec := upload()
	handed := handover.State{Name: spec.Name, Backup: handover.SnapshotPair{
		Snapshot: &snapshotv1.VolumeSnapshot{},
		Content:  &snapshotv1.VolumeSnapshotContent{Spec: snapshotv1.VolumeSnapshotContentSpec{Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: new("handle-1")}}},
	}}
	changes, err := changedBlocks(spec, objects.VolumeInfo{}, handed)
	require.NoError(t, err)
	require.Nil(t, changes, "it is of another mover")
	spec.BlockMover = true
	_, err = changedBlocks(spec, objects.VolumeInfo{}, handed)
	require.ErrorAs(t, err, new(*TerminalError))
	require.ErrorContains(t, err, "the changed blocks of claim apps/data: ")
	changes, err = changedBlocks(spec, objects.VolumeInfo{Handle: "volume-1"}, handed)
	require.NoError(t, err)
	require.Equal(t, &objects.ChangedBlocks{Change: "handle-1", Volume: "volume-1", Snapshot: "du-1"}, changes)
}
